"""A model that is watched while it is trained learns what it learns without, bit for bit."""

import contextlib
import json
import math

import pytest
import torch
import transformers as hf

import attnscope
from attnscope.errors import AttnscopeError, SelectionError
from attnscope.notebook.watch import Alarmed

SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 40}


def build(dropout=0.1):
    torch.manual_seed(0)
    config = hf.GPT2Config(
        **SIZES, resid_pdrop=dropout, attn_pdrop=dropout, embd_pdrop=dropout, use_cache=False
    )
    return hf.GPT2LMHeadModel(config).train()


def batches(count):
    chosen = torch.Generator().manual_seed(1)
    return [torch.randint(1, 40, (3, 9), generator=chosen) for _ in range(count)]


def learn(model, steps, accumulate=1, dtype=None):
    """A bare loop; what it leaves of the model and of the random numbers."""
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for number, ids in enumerate(batches(steps * accumulate), 1):
        around = torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext()
        with around:
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [*model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize(
    "how",
    [{}, {"accumulate": 3}, {"dtype": torch.bfloat16}, {"checkpointing": True}],
    ids=["plain", "accumulation", "bfloat16", "gradient checkpointing"],
)
def test_weights_and_random_numbers_are_those_of_an_unwatched_run(how):
    checkpointing = how.pop("checkpointing", False)
    ways = []
    for watched in (False, True):
        model = build()
        if checkpointing:
            model.gradient_checkpointing_enable()
        if not watched:
            ways.append(learn(model, 7, **how))
            continue
        with attnscope.watch(model, every=2) as log:
            ways.append(learn(model, 7, **how))
        assert len(log.figures) == math.ceil(7 * how.get("accumulate", 1) / 2)
        assert "dropout was on: the weights are those before it" in log.notes
    assert all(torch.equal(one, other) for one, other in zip(*ways, strict=True))


def test_figures_are_those_of_the_batch_that_ran():
    model = build(dropout=0.0)
    with attnscope.watch(model, every=3, measures=["entropy", "induction"]) as log:
        learn(model, 1)
        found = log.figures[0]
    eager = build(dropout=0.0)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        weights = eager(input_ids=batches(1)[0], output_attentions=True).attentions
    for head in found:
        layer, number = head["layer"], int(head["head"].split("H")[1])
        rows = torch.special.entr(weights[layer][:, number].double()).sum(-1)[:, 1:]
        assert head["figures"]["entropy"][0] == pytest.approx(float(rows.mean()), abs=1e-5)
    assert any("induction" in head["figures"] for head in found)  # ids say which tokens come again


def test_only_passes_in_training_mode_count_and_nothing_is_left_behind():
    model = build()
    before = dict(model.__dict__)
    with attnscope.watch(model, every=1) as log:
        model(input_ids=batches(1)[0])
        model.eval()(input_ids=batches(1)[0])
        model.train()(input_ids=batches(1)[0])
    assert list(log.figures) == [0, 1]
    assert model.__dict__ == before
    with pytest.raises(ZeroDivisionError), attnscope.watch(model):
        1 / 0  # noqa: B018
    assert model.__dict__ == before


def test_lines_reports_frames_and_curves(tmp_path):
    model, told = build(), []
    with attnscope.watch(model, every=2, path=tmp_path / "log.jsonl", report=told.append) as log:
        learn(model, 5)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert lines[1]["figures"] == log.figures[2]
    assert told[2]["L1H0/entropy"] == log.figures[4][2]["figures"]["entropy"][0]
    assert set(log.frame().columns) == {"measure", "head", "step", "value", "baseline", "appears"}
    log.save(tmp_path / "curves.png")
    assert (tmp_path / "curves-entropy.png").exists()
    assert "svg" in log._repr_html_() or "img" in log._repr_html_()


def test_an_alarm_warns_or_stops():
    model = build()
    with (
        pytest.warns(UserWarning, match=r"step 0: L\dH\d has entropy"),
        attnscope.watch(model, alarm="entropy > 0.1"),
    ):
        learn(model, 1)
    with attnscope.watch(model, alarm="entropy < 0 or confidence > 2") as log:
        learn(model, 1)
    assert not log.alarms
    with pytest.raises(Alarmed, match="step 0"), attnscope.watch(model, alarm="entropy > 0.1", stop=True):
        learn(model, 3)


def test_a_wrong_call_is_one_sentence():
    with pytest.raises(AttnscopeError, match="every is 0"), attnscope.watch(build(), every=0):
        pass
    with pytest.raises(SelectionError, match="entropy"), attnscope.watch(build(), measures=["entropie"]):
        pass
    with attnscope.watch(build()) as log, pytest.raises(AttnscopeError, match="no step was watched"):
        log.frame()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_is_watched_by_a_callback(tmp_path, accumulate):
    pytest.importorskip("accelerate")
    ways = []
    for callbacks in ([], [attnscope.callback(every=2, path=tmp_path / "log.jsonl")]):
        rows = [{"input_ids": row, "labels": row} for ids in batches(8) for row in ids]
        settings = hf.TrainingArguments(
            tmp_path / "out",
            max_steps=4,
            per_device_train_batch_size=3,
            gradient_accumulation_steps=accumulate,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
        )
        model = build()
        hf.Trainer(model, settings, train_dataset=rows, callbacks=callbacks).train()
        ways.append(list(model.state_dict().values()))
    assert all(torch.equal(one, other) for one, other in zip(*ways, strict=True))
    assert list(callbacks[0].log.figures) == [0, 2]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
