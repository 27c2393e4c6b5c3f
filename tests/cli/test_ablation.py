"""``attnscope ablate``: one head, all heads, over texts, and the estimate."""

import csv
import io
import json
import re

import pytest

from attnscope.models import load
from attnscope.questions.ablate import ablate
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads

TEXT = "The cat sat on the mat because it was tired."


def test_what_changes_without_a_head_is_printed(run):
    ran = run("ablate", TEXT, "--head", "L2H1")
    model = load("own")
    seen = ablate(model, model.prepare(TEXT), "L2H1")
    assert ran.code == 0
    assert f"mean KL divergence of the predictions: {seen.divergence:.3g} nats" in ran.out
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
    numbers = json.loads(run("ablate", TEXT, "--head", "2.1", "-m", "own-causal", "--json").out)
    assert (numbers["head"], numbers["kind"]) == ("L2H1", "decoder")
    assert len(numbers["changed"]) == 11
    assert {"token", "position", "divergence", "before", "after", "right", "wanted"} == set(
        numbers["changed"][0]
    )


def test_the_head_of_the_largest_importance_comes_first(run):
    model = load("own")
    seen = measure_heads(model, model.prepare(TEXT), Selection(), importance=True)
    best = max(seen.importance.items(), key=lambda pair: pair[1].value)
    head, figure = best
    ran = run("ablate", TEXT, "--importance", "--top", "3")
    (first,) = (line.split() for line in ran.out.splitlines() if line.startswith(head.name))
    assert first[1] == f"{figure.value:.3f}"
    assert "29 more heads" in ran.out
    numbers = json.loads(run("ablate", TEXT, "--importance", "--json").out)["heads"]
    assert numbers[0]["importance"]["value"] == pytest.approx(figure.value)
    row = next(csv.DictReader(io.StringIO(run("ablate", TEXT, "--importance", "--csv").out)))
    assert float(row["importance"]) == pytest.approx(figure.value)


def test_the_loss_without_each_head_is_listed_and_drawn(run, tmp_path):
    model = load("own")
    without = measure_heads(model, model.prepare(TEXT), Selection(), ablation=True).ablation
    worst = sorted(without, key=lambda head: -without[head].value)[:4]
    ran = run("ablate", TEXT, "--top", "4")
    listed = [line.split()[:2] for line in ran.out.splitlines() if line.startswith("L")]
    assert listed == [[head.name, f"{without[head].value:.3f}"] for head in worst]
    assert run("ablate", TEXT, "--layer", "0", "-o", tmp_path / "map.png").code == 0
    assert (tmp_path / "map.png").exists()


def test_the_loss_without_each_head_stands_beside_its_error(run, tmp_path):
    (tmp_path / "texts.txt").write_text("The cat sat on the mat.\nA dog ran off with the bone.\n")
    asked = ("ablate", "--texts", tmp_path / "texts.txt", "-m", "own-causal")
    ran = run(*asked)
    assert ran.code == 0
    lines = ran.out.splitlines()
    rises = [float(line.split(" ±")[0].split()[-1]) for line in lines if " ±" in line and line[0] == "L"]
    assert rises == sorted(rises, reverse=True)
    assert "the loss with all heads" in " ".join(lines)
    assert "a head's output is set to zero" in ran.out
    heads = json.loads(run(*asked, "--mean", "--json").out)["heads"]
    assert all({"value", "error", "loss", "texts"} == set(head["ablation"]) for head in heads)
    header, *rows = csv.reader(io.StringIO(run(*asked, "--csv").out))
    assert header[-2:] == ["ablation", "ablation_error"]
    assert len(rows) == 12
