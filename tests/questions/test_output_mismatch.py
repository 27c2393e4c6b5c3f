"""Weights that, times the values, miss the layer's output are never shown without a warning."""

import re
from math import inf

import pytest

TEXT = "The cat sat on the mat because it was tired."
VIEWS = {
    "overview": ["show", TEXT],
    "layer": ["show", TEXT, "--layer", "1"],
    "head": ["show", TEXT, "--head", "L1H0"],
    "token": ["show", TEXT, "--token", "cat"],
    "token of a head": ["show", TEXT, "--token", "cat", "--head", "L1H0"],
    "score by dimension": ["show", TEXT, "--head", "L1H0", "--neurons", "it -> cat"],
    "stats": ["stats", TEXT],
    "find": ["find", "it -> cat", TEXT],
    "compare": ["compare", TEXT],
    "flow": ["flow", TEXT],
    "spans": ["spans", TEXT],
    "info": ["info", "own", TEXT],
}


SAID = {
    0.5: r"do not rely on layers? [0-9-]+: its weights do not reproduce the output \(error 0\.5\)",
    inf: r"layers? [0-9-]+ computes numbers that are not finite: its heads have no scores",
}


@pytest.mark.sweep
@pytest.mark.parametrize("difference", SAID)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_warns_of_weights_that_miss_the_output(view, difference, monkeypatch, run):
    monkeypatch.setattr("attnscope.capture.rows.capture.compare_rows", lambda *parts: difference)
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")
    ran = run(*VIEWS[view])
    assert ran.code == 0, ran.err
    said = " ".join(f"{ran.out} {ran.err}".split())
    assert re.search(SAID[difference], said)
