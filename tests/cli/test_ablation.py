"""``attnscope show --ablate`` and ``attnscope stats --importance``."""

import csv
import io
import json
import re

import pytest

from attnscope.models import load
from attnscope.questions.ablate import ablate
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.models.folders import minilm

TEXT = "The cat sat on the mat because it was tired."


def test_what_changes_without_a_head_is_printed(run):
    ran = run("show", TEXT, "--ablate", "L2H1")
    model = load("own")
    seen = ablate(model, model.prepare(TEXT), "L2H1")
    assert ran.code == 0
    assert f"change by {seen.divergence:.3g} nats on average" in ran.out
    lines = ran.out.splitlines()
    # long guesses go on in a further line, which begins with spaces
    table = [line for line in lines[lines.index("") + 2 :] if not line.startswith("·")]
    rows = [line.split() for line in table if line[: lines[lines.index("") + 1].index("change")].strip()]
    assert [row[:2] for row in rows] == [[one.token, str(one.position)] for one in seen.changed[:8]]
    assert [row[2] for row in rows] == [f"{one.divergence:.3f}" for one in seen.changed[:8]]
    first = seen.changed[0]
    assert re.search(rf"{re.escape(first.token)} {first.position} .* \d+%", ran.out)
    assert "[the] " in ran.out, "the token that stands in the text"
    assert max(map(len, lines)) <= 80


def test_the_numbers_of_an_ablation_are_json(run):
    numbers = json.loads(run("show", TEXT, "--ablate", "2.1", "-m", "own-causal", "--json").out)
    assert (numbers["head"], numbers["kind"]) == ("L2H1", "decoder")
    assert len(numbers["changed"]) == 11
    assert {"token", "position", "divergence", "before", "after", "right", "wanted"} == set(
        numbers["changed"][0]
    )


def test_importance_is_a_column_that_sorts(run):
    model = load("own")
    seen = measure_heads(model, model.prepare(TEXT), Selection(), importance=True)
    best = max(seen.importance.items(), key=lambda pair: pair[1].value)
    head, figure = best
    ran = run("stats", TEXT, "--importance", "--top", "3")
    first = ran.out.splitlines()[3].split()
    assert first[0] == head.name
    assert f"{figure.value:.2f}" in first
    numbers = json.loads(run("stats", TEXT, "--importance", "--top", "1", "--json").out)["heads"]
    assert numbers[0]["importance"]["value"] == pytest.approx(figure.value)
    (row,) = csv.DictReader(io.StringIO(run("stats", TEXT, "--importance", "--top", "1", "--csv").out))
    assert float(row["importance"]) == pytest.approx(figure.value)


def test_importance_can_be_drawn_and_sorted_away_from(run):
    ran = run("stats", TEXT, "--importance", "--map", "importance")
    assert ran.out.startswith("importance · encoder")
    ran = run("stats", TEXT, "--importance", "--sort", "previous", "--top", "1")
    assert ran.out.splitlines()[3].startswith("L2H1 previous")
    assert "importance" in ran.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", TEXT, "--ablate", "L9H0"], "no head L9H0: this model has layers 0-3, heads 0-7"),
        (["show", TEXT, "--ablate", "L1H0", "-m", minilm()], "it has no language-model head"),
        (["show", TEXT, "--ablate", "L1H0", "-o", "x.png"], "--ablate prints"),
        (["stats", TEXT, "--importance", "-m", minilm()], "it has no language-model head"),
        (["stats", TEXT, "--sort", "importance"], "add --importance: it takes a second pass"),
    ],
)
def test_what_cannot_be_asked_is_said(run, arguments, sentence):
    ran = run(*arguments)
    assert ran.code != 0
    assert ran.out == ""
    assert sentence in " ".join(ran.err.replace("│", " ").split())
