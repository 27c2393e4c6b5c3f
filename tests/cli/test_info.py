"""``attnscope info``: what can be shown of a model, what it reports itself, and failed recordings."""

import re

import pytest
import transformers

from attnscope.capture.placing.kinds import Sites
from attnscope.capture.rows.scores import ScoredRows
from attnscope.models import load
from attnscope.questions.info import survey_model
from tests.capture.tiny import EXPERTS, SIZES, tiny
from tests.models.folders import hybrid as hybrid_folder
from tests.models.folders import save

SENTENCE = "the recording failed in h.1.attn (ZeroDivisionError: a mistake), so its attention is missing"
TINY = {**SIZES, "vocab_size": 400, "num_hidden_layers": 2}
HYBRID = {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 2}
STATES = {"use_mamba_kernels": False, "mamba_d_state": 4}
PARTS = ("q", "k", "v", "post_attention", "intermediate", "output")
MODELS = {
    "layers without attention": tiny("Jamba", **TINY | HYBRID | STATES, num_key_value_heads=2),
    "sinks": tiny("GptOss", **TINY, **EXPERTS, num_key_value_heads=2, head_dim=8),
    "scores": tiny("SqueezeBert", **TINY, embedding_size=32, **{f"{part}_groups": 1 for part in PARTS}),
}


@pytest.fixture
def folder(request, tmp_path, causal_folder):
    """The folder of a tiny model, with a tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(causal_folder)
    return save(tmp_path / "model", MODELS[request.param].build(), tokenizer)


def of(name):
    return pytest.mark.parametrize("folder", [name], indirect=True)


@pytest.mark.sealed
@of("layers without attention")
def test_info_names_layers_without_attention(run, folder):
    answer = run.json("info", folder)
    assert [(site["layer"], site["heads"], site["key_heads"]) for site in answer["sites"]] == [(2, 4, 2)]
    assert [hole["layer"] for hole in answer["without"]] == [0, 1, 3]
    assert "no attention in layers 0-1, 3: a state-space model" in run("info", folder).out.replace("\n", " ")


@of("sinks")
def test_info_reports_row_sums_below_one_with_a_sink(run, folder):
    answer = run.json("info", folder)
    assert all(0 < low < high < 1 for low, high in (site["row_sums"] for site in answer["sites"]))
    assert "a sink that no token owns" in run("info", folder).out


def test_survey_leaves_attention_implementation_unchanged(causal_folder):
    model = load(causal_folder)
    before = model.module.config._attn_implementation
    survey_model(model, model.prepare("The cat sat."))
    assert model.module.config._attn_implementation == before == "sdpa"


def test_one_token_report_is_right(run, causal_folder):
    answer = run.json("info", causal_folder, "a")
    assert answer["sites"][0]["queries"] == 1
    assert {site["own_report"] for site in answer["sites"]} == {"right"}


@of("scores")
def test_wrong_own_attentions_are_reported_with_their_fault(run, folder):
    told = "own output_attentions are wrong in encoder layers 0-1: scores from before the softmax"
    assert told in " ".join(run("info", folder).out.split())
    reports = {(site["own_report"], site["own_fault"]) for site in run.json("info", folder)["sites"]}
    assert reports == {("wrong", "scores from before the softmax")}


@pytest.fixture
def failing(monkeypatch):
    """The recording fails wherever the second layer shows its attention."""
    place = Sites.place

    def fail(self, capture):
        if "h.1." in capture.name:
            raise ZeroDivisionError("a mistake.")
        return place(self, capture)

    monkeypatch.setattr(Sites, "place", fail)


@pytest.mark.parametrize("asked", ["show", "show --head L0H0", "show --token 0", "stats", "compare"])
def test_failed_layer_is_noted_below_picture_and_in_json(run, failing, causal_folder, asked):
    words = (*asked.split(), "the cat sat on the mat", "-m", causal_folder)
    assert SENTENCE in " ".join(run(*words).out.split())
    assert "--token" in asked or SENTENCE in run.json(*words)["notes"]


def test_failed_layer_is_named_by_info_and_refused_by_show(run, failing, causal_folder):
    assert SENTENCE in " ".join(run("info", causal_folder).out.split())
    answer = run.json("info", causal_folder)
    assert [site["layer"] for site in answer["sites"]] == [0]
    assert answer["failures"] == [{"name": "h.1.attn", "reason": "ZeroDivisionError: a mistake"}]
    ran = run("show", "the cat sat", "-m", causal_folder, "--head", "L1H0").refuses("no head L1H0")
    assert SENTENCE in " ".join(ran.err.split())


@pytest.fixture
def hybrid(tmp_path):
    return hybrid_folder(tmp_path / "hybrid")


def test_every_layer_is_proved_by_identity_values(run, hybrid):
    proofs = run.json("info", hybrid, "--prove")["sites"]
    assert [(each["layer"], each["source"]) for each in proofs] == [
        *((n, "probe") for n in range(3)),
        (3, "recomputed"),
    ]
    assert all(each["error"] < 1e-6 for each in proofs)
    assert proofs[3]["row_sums"] == pytest.approx([1, 1], abs=1e-6)
    out = " ".join(run("info", hybrid, "--prove").out.split())
    assert re.search(r"e-0[78] of rows", out)
    assert re.search(r"e-0[78] of output", out)


def test_rows_other_than_the_kernels_are_not_proved(run, causal_folder, monkeypatch):
    rows = ScoredRows.rows
    monkeypatch.setattr(ScoredRows, "rows", lambda self, *which: rows(self, *which).roll(1, 1))  # other heads
    answer = run.json("info", causal_folder, "--prove")
    assert all(each["error"] > 0.01 for each in answer["sites"])
    assert "not proved" in run("info", causal_folder, "--prove").out
