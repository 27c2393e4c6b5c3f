"""What stands on standard error while a command works: how far it has come, where somebody looks."""

import io
import sys

import pytest

from attnscope.cli.waiting import waiting
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.progress import listening, tell
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads

TEXT = "The cat sat on the mat because it was tired."


class Terminal(io.StringIO):
    """Standard error as a terminal that remembers."""

    def isatty(self):
        return True


@pytest.fixture
def heard():
    told = []
    with listening(lambda *what: told.append(what)):
        yield told


def test_every_layer_of_a_pass_is_told_when_all_observers_have_seen_it(heard):
    model = load("own")
    measure_heads(model, model.prepare(TEXT), Selection())
    assert heard == [("layer", done, 4) for done in (1, 2, 3, 4)]


def test_every_token_that_is_written_is_told(heard):
    model = load("own-causal")
    model.generate(model.prepare("The king said that he would"), 5)
    assert [told for told in heard if told[0] == "token"] == [("token", done, 5) for done in (1, 2, 3, 4, 5)]


def test_every_pass_of_the_predictions_is_told(heard):
    model = load("own", predicting=True)
    measure_heads(
        model, model.prepare(" ".join([TEXT] * 30), limit=Limit(truncate=True)), Selection(), importance=True
    )
    passes = [told for told in heard if told[0] == "pass"]
    assert [done for _, done, _ in passes] == list(range(1, passes[-1][2] + 1))


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_terminal_shows_what_is_done_in_one_line(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with waiting("a [model] of many words"):
        tell("layer", 3, 12)
    shown = sys.stderr.getvalue()
    assert shown.count("\n") == 1  # the end of the line that is taken back
    assert columns < 80 or ("a [model] of many words" in shown and "layer 3 of 12" in shown)


def test_nothing_is_shown_where_standard_error_is_no_terminal(capsys):
    with waiting("a model"):
        tell("layer", 3, 12)
        print("what a model prints")
    assert capsys.readouterr() == ("", "what a model prints\n")


def test_what_is_told_when_nobody_waits_is_lost():
    with waiting("a model"):
        pass
    tell("layer", 1, 2)


def test_quiet_has_neither_notes_nor_progress_and_verbose_says_how_long_each_step_took(run, tmp_path):
    out = tmp_path / "a.npz"
    for words in (("--head", "L2H1"), ("-o", out)):
        usual, quiet, verbose = (
            run("show", TEXT, "--max-tokens", "9", *words, *more) for more in ((), ("-q",), ("-v",))
        )
        assert quiet.err == ""
        assert len(quiet.out) < len(usual.out) or not usual.out
        assert "own · 9 tokens: " in verbose.err
        assert verbose.out == usual.out
    assert (usual.err, out.exists()) == (f"saved {out}\n", True)
