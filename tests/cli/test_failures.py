"""A recording that fails at one layer: every command shows the others, and says which one is missing."""

import pytest

from attnscope.capture.placing.kinds import Sites

SENTENCE = "the recording failed in h.1.attn (ZeroDivisionError: a mistake), so its attention is missing"


@pytest.fixture(autouse=True)
def failing(monkeypatch):
    """The recording fails wherever the second layer shows its attention."""
    place = Sites.place

    def fail(self, capture, name, calls):
        if "h.1." in name:
            raise ZeroDivisionError("a mistake.")
        return place(self, capture, name, calls)

    monkeypatch.setattr(Sites, "place", fail)


@pytest.mark.parametrize(
    "command", [["show"], ["show", "--head", "L0H0"], ["show", "--token", "0"], ["stats"], ["compare"]]
)
def test_the_sentence_stands_under_the_picture_and_in_the_json(run, causal_folder, command):
    words = [*command, "the cat sat on the mat", "-m", causal_folder]
    ran = run(*words)
    assert ran.code == 0, ran.err
    assert SENTENCE in " ".join(ran.out.split())
    if "--token" not in command:
        assert SENTENCE in run.json(*words)["notes"]


def test_info_lists_the_layers_that_were_seen_and_names_the_other(run, causal_folder):
    assert SENTENCE in " ".join(run("info", causal_folder).out.split())
    answer = run.json("info", causal_folder)
    assert 1 not in [site["layer"] for site in answer["sites"]]
    assert answer["failures"] == [{"name": "h.1.attn", "reason": "ZeroDivisionError: a mistake"}]


def test_the_missing_layer_itself_is_refused_with_the_reason(run, causal_folder):
    ran = run("show", "the cat sat", "-m", causal_folder, "--head", "L1H0").refuses("no head L1H0")
    assert SENTENCE in " ".join(ran.err.split())
