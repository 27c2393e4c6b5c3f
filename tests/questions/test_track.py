"""Heads over checkpoints: scores equal each checkpoint's eager pass, and the log saves repeated work."""

import json

import pytest
import torch
import transformers as hf

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.track import step_of, track
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import gpt2, mean_entropy

TEXTS = ["The cat sat on the mat because it was tired.", "Words look back, and heads look at words."]
SCALES = {100: 0.0, 200: 4.0, 300: 12.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three checkpoints of one model; the queries of its second layer grow from step to step."""
    folder = tmp_path_factory.mktemp("run")
    plain = hf.GPT2Model.from_pretrained(gpt2(folder / "plain"))
    tokenizer = hf.AutoTokenizer.from_pretrained(folder / "plain")
    first = plain.h[1].attn.c_attn.weight.detach().clone()
    for step, scale in SCALES.items():
        with torch.no_grad():
            plain.h[1].attn.c_attn.weight[:, :32] = scale * first[:, :32]
            plain.h[1].attn.c_attn.bias[:32] = 0
        plain.save_pretrained(folder / f"checkpoint-{step}")
        tokenizer.save_pretrained(folder / f"checkpoint-{step}")
    return folder


def follow(run, names=None, **more):
    """The courses of two scores over checkpoints, all three unless some are named."""
    names = names or [str(run / f"checkpoint-{step}") for step in (300, 100, 200)]
    return track(names, more.pop("load", load), ListedTexts(TEXTS), ["entropy", "first"], **more)


@pytest.fixture(scope="module")
def followed(run):
    return follow(run)


def test_checkpoint_scores_equal_their_eager_pass(run, followed):
    assert followed.steps == (100, 200, 300)
    course = next(each for each in followed.of("entropy") if each.head == "L1H2")
    tokenizer = hf.AutoTokenizer.from_pretrained(run / "plain")
    many = [tokenizer(text, return_tensors="pt").input_ids for text in TEXTS]
    for step, value in zip(followed.steps, course.values, strict=True):
        model = hf.AutoModel.from_pretrained(run / f"checkpoint-{step}")
        assert value == pytest.approx(mean_entropy(model, many, 1, 2), abs=1e-5)


def test_tracked_heads_sort_by_change_and_appear_past_midpoint(followed):
    courses = followed.of("entropy")
    assert {each.layer for each in courses[:4]} == {1}
    assert all(each.change == pytest.approx(0, abs=1e-6) for each in courses[4:])
    for course in courses[:4]:
        way = [value - even for value, even in zip(course.values, course.baseline, strict=True)]
        assert way[0] == pytest.approx(0, abs=1e-5)  # queries of nothing: even attention
        assert course.appears == (200 if way[1] / way[2] >= 0.5 else 300)


def test_score_that_stays_at_baseline_never_appears(run):
    courses = follow(run, [str(run / "checkpoint-100")]).of("entropy")
    even = [abs(course.values[0] - course.baseline[0]) < 0.005 for course in courses]
    assert [course.appears is None for course in courses] == even
    assert any(even)


def test_track_log_skips_measured_checkpoints(run, followed, tmp_path):
    log, names = tmp_path / "log.jsonl", [str(run / f"checkpoint-{step}") for step in (100, 200)]
    follow(run, names, log=log)
    loaded = []
    assert follow(run, log=log, load=lambda name: loaded.append(name) or load(name)) == followed
    assert loaded == [str(run / "checkpoint-300")]
    assert [json.loads(line)["checkpoint"] for line in log.read_text().splitlines()] == [*names, *loaded]


def test_invalid_or_foreign_track_log_is_refused(run, tmp_path):
    log, names = tmp_path / "log.jsonl", [str(run / "checkpoint-100")]
    for content in ("[]", "no json", '{"checkpoint": 1}'):
        log.write_text(content)
        with pytest.raises(InputError, match="is no log of attnscope track"):
            follow(run, log=log)
        assert log.read_text() == content
    log.unlink()
    follow(run, names, log=log)
    with pytest.raises(InputError, match="other texts, measures or heads"):
        track(names, load, ListedTexts(TEXTS), ["self"], log=log)


def test_unreadable_checkpoint_is_skipped_and_named(run, tmp_path):
    broken = hf.GPT2Model.from_pretrained(run / "checkpoint-100")
    with torch.no_grad():
        broken.h[0].mlp.c_fc.weight[3, 3] = torch.nan
    broken.save_pretrained(tmp_path / "checkpoint-400")
    hf.AutoTokenizer.from_pretrained(run / "plain").save_pretrained(tmp_path / "checkpoint-400")
    (tmp_path / "checkpoint-500").mkdir()
    told: list[str] = []
    names = [str(run / "checkpoint-100"), *(str(tmp_path / f"checkpoint-{step}") for step in (400, 500))]
    result = follow(run, names, report=told.append)
    assert result.steps == (100,)
    assert "checkpoint-400 is left out: its weights h.0.mlp.c_fc.weight are not all finite" in told[0]
    assert "checkpoint-500 is left out" in told[1]
    assert tuple(told) == result.notes
    with pytest.raises(InputError, match="none of the 1 checkpoints can be read"):
        follow(run, names[2:])


def test_checkpoints_of_same_step_or_other_shape_are_kept_apart(run, tmp_path):
    names = [str(run / "checkpoint-100"), gpt2(tmp_path / "other-100")]
    result = follow(run, names)
    assert result.checkpoints in ((names[0],), (names[1],))
    (note,) = result.notes
    assert "-100 is left out: step 100 is" in note
    result = follow(run, [names[0], gpt2(tmp_path / "checkpoint-900", n_layer=3)])
    assert "checkpoints differ in their heads" in result.notes
    assert next(each for each in result.of("entropy") if each.head == "L2H0").values[0] is None


def test_cut_texts_note_survives_the_track_log(tmp_path):
    names, log = [gpt2(tmp_path / "checkpoint-1", n_positions=16)], tmp_path / "log.jsonl"
    for _ in range(2):
        texts, run = ListedTexts(["word " * 40, "a cat"]), CorpusRun(truncate=True)
        result = track(names, load, texts, ["entropy"], run=run, log=log)
        assert "1 text was cut at the limit of tokens" in result.notes


@pytest.mark.parametrize(
    ("name", "step"), [("run/checkpoint-500", 500), ("step1000", 1000), ("main", 7), ("v2/last", 7)]
)
def test_step_is_the_last_number_of_a_name(name, step):
    assert step_of(name, 7) == step
