"""``attnscope stats``: figures that agree with an independent computation, sorted, filtered and drawn."""

import csv
import io
import itertools
import json
import re

import numpy as np
import pytest

from attnscope.errors import SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.questions.selection import Selection
from attnscope.questions.stats import COLUMNS, measure_heads, parse_conditions
from attnscope.render.latex import escape_latex
from tests.models.folders import eager_minilm, gpt2, minilm

TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def eager():
    """The real model's own eager attention on the text.  [layer, head, query, key]"""
    return eager_minilm(TEXT)


def heads(run, *arguments):
    return json.loads(run("stats", TEXT, "-m", minilm(), "--json", *arguments).out)["heads"]


def test_every_head_has_its_figures(run, eager):
    found = heads(run)
    assert len(found) == 72
    for head in found:
        rows = eager[head["layer"], head["head"]]
        figures = {name: figure["value"] for name, figure in head["figures"].items()}
        assert figures["entropy"] == pytest.approx(-(rows * np.log(rows)).sum(-1).mean(), abs=1e-5)
        assert figures["previous"] == pytest.approx(np.diagonal(rows, -1).mean(), abs=1e-5)
        assert figures["confidence"] == pytest.approx(rows.max(-1).mean(), abs=1e-5)
        assert figures["first"] == pytest.approx(rows[1:, 0].mean(), abs=1e-5)


def test_a_table_in_latex_has_the_cells_of_the_printed_one(run):
    out = run("stats", TEXT, "--sort", "[CLS]", "--top", "3", "--latex").out
    names, *rows = [line.removesuffix(r" \\").split(" & ") for line in out.splitlines() if " & " in line]
    assert names[0] == "head"
    assert "[CLS]" in names
    figures = json.loads(run("stats", TEXT, "--sort", "[CLS]", "--top", "3", "--json").out)["heads"]
    for row, head in zip(rows, figures, strict=True):
        assert row[0] == f"L{head['layer']}H{head['head']}"
        assert row[names.index("[CLS]")] == f"{head['figures']['[CLS]']['value']:.2f}"
    assert [out.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a_b & 50% #1 ${x}", r"a\_b \& 50\% \#1 \$\{x\}"),
     ("\\^~", r"\textbackslash{}\textasciicircum{}\textasciitilde{}"),
     ("<s> – ±", r"\textless{}s\textgreater{} -- $\pm$")],
)  # fmt: skip
def test_latex_sets_what_is_written_literally(text, expected):
    assert escape_latex(text) == expected


def test_the_map_of_a_measure_has_the_mean_of_each_layer_beside_it(run, eager):
    out = run("stats", TEXT, "-m", minilm(), "--map", "confidence").out
    named, *lines = [line.split() for line in out.splitlines() if re.match(r"(L\d|\s+H0)", line)]
    assert named[-1] == "mean"
    assert max(map(len, out.splitlines())) <= 80
    for row, layer in zip(lines, eager, strict=True):
        assert float(row[-1]) == pytest.approx(layer.max(-1).mean(), abs=0.0051)


def test_the_largest_of_a_measure_comes_first_and_top_cuts(run):
    values = [head["figures"]["distance"]["value"] for head in heads(run, "--sort", "distance", "--top", "7")]
    assert len(values) == 7
    assert values == sorted(values, reverse=True)
    assert values[0] == max(head["figures"]["distance"]["value"] for head in heads(run))


def test_only_heads_that_meet_the_conditions_are_listed(run):
    found = heads(run, "--where", "entropy<1 and role=first")
    assert found
    assert all(head["figures"]["entropy"]["value"] < 1 for head in found)
    assert {head["role"]["name"] for head in found} == {"first"}
    others = heads(run, "--where", "role!=first")
    assert len(others) + len(heads(run, "--where", "role=first")) == 72


def test_the_known_head_is_on_top_of_the_table(run):
    ran = run("stats", TEXT, "-m", minilm(), "--sort", "previous", "--top", "1")
    assert "L0H2 previous 1.00 (0.08)" in ran.out
    assert "1 of 72 heads; figures measured beside the kernel" in ran.out
    assert max(len(line) for line in ran.out.splitlines()) <= 80


def test_heads_stand_in_the_order_of_how_far_their_role_lies_above_its_baseline(run):
    """The lifts, from the JSON, fall; heads on even attention and heads without a pattern come last."""
    found = heads(run)
    assert len(found) == 72
    told = [each["role"] for each in found if each["role"]["name"] not in ("broad", "sharp", "none")]
    lifts = [role["score"] - role["baseline"] for role in told]
    assert lifts == sorted(lifts, reverse=True)
    assert [each["role"] for each in found][: len(told)] == told
    grouped = [each["role"]["name"] for each in heads(run, "--sort", "role")]
    assert len([name for name, _ in itertools.groupby(grouped)]) == len(set(grouped))
    places = [(each["layer"], each["head"]) for each in heads(run, "--sort", "head")]
    assert places == sorted(places)


@pytest.mark.parametrize("more", [(), ("-m", "own-causal"), ("--where", "entropy<1"), ("--sort", "next")])
def test_the_table_has_the_same_columns_in_every_call_with_units(run, more):
    lines = run("stats", TEXT, *more).out.splitlines()
    (header,) = (line.split() for line in lines if line.startswith("head "))
    measures = ["next", "entropy", "distance", "previous", "first"] if "next" in more else None
    assert header == ["head", "role", "figure", *(measures or COLUMNS)]
    assert ["nats", "tokens"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 80


def test_one_head_has_the_role_that_it_has_among_all(run):
    (all_,) = (each for each in heads(run) if (each["layer"], each["head"]) == (1, 3))
    assert heads(run, "--head", "L1H3") == [all_]


def test_csv_has_every_figure_of_every_head(run):
    rows = list(csv.DictReader(io.StringIO(run("stats", TEXT, "-m", minilm(), "--csv").out)))
    assert len(rows) == 72
    head = next(row for row in rows if (row["layer"], row["head"]) == ("0", "2"))
    assert float(head["previous"]) == pytest.approx(1, abs=0.01)
    assert float(head["previous_baseline"]) == pytest.approx(1 / 13)
    assert head["role"] == "previous"


def test_one_measure_is_drawn_as_a_map(run, tmp_path):
    out = run("stats", TEXT, "-m", minilm(), "--map", "previous").out
    (line,) = (line for line in out.splitlines() if line.startswith("L0 "))
    assert line.split()[3] == "1.00"
    assert run("stats", TEXT, "--map", "entropy", "-o", tmp_path / "map.png").code == 0
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_measures_are_listed_and_explained(run):
    assert "induction" in run("stats", "--list").out
    explained = run("stats", "--explain", "induction").out
    assert "Olsson et al. 2022" in explained


def test_a_condition_on_a_figure_that_does_not_exist_is_not_met():
    model = load("own")
    seen = measure_heads(model, model.prepare(TEXT), Selection(layers=(0,)))
    (condition,) = parse_conditions("segment>=0")
    assert not any(condition.meets(head) for head in seen.heads)


def test_conditions_are_read_with_or_without_spaces():
    assert parse_conditions("entropy<1 and previous>=0.5") == parse_conditions(
        "entropy < 1  and  previous >= 0.5"
    )
    with pytest.raises(SelectionError):
        parse_conditions("")


def test_a_long_text_is_measured_in_a_single_pass_to_the_same_figures(tmp_path):
    model = load(gpt2(tmp_path, n_positions=1200, n_layer=1))
    prepared = model.prepare("The cat sat on the mat because it was tired. " * 60, limit=Limit(truncate=True))
    assert len(prepared.tokens) >= 512
    passed = measure_heads(model, prepared, Selection())
    beside = measure_heads(model, prepared, Selection(), exact_kernel=True)
    assert "1 of 1 calls ran as a fused pass" in passed.ran
    assert beside.ran == "figures measured beside the kernel"
    for one, other in zip(passed.heads, beside.heads, strict=True):
        for name, figure in other.figures.items():
            assert one.figures[name].value == pytest.approx(figure.value, rel=1e-5, abs=1e-5), name


def test_every_head_of_a_long_text_is_saved_small_and_shown_again(run, tmp_path):
    folder = gpt2(tmp_path / "model", n_positions=600)
    out = tmp_path / "maps.npz"
    ran = run("stats", TEXT * 80, "-m", folder, "--max-tokens", "600", "--pooled", out, "--top", "1")
    assert (ran.code, f"saved {out}" in ran.err) == (0, True)
    shown = run("show", "--from", out, "--head", "L1H2", "--json")
    assert shown.code == 0
    assert np.array(json.loads(shown.out)["weights"]).shape == (256, 256)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".json", ".csv", ".html"])
def test_maps_are_saved_in_every_form_that_the_help_names(run, tmp_path, suffix):
    assert suffix in run("stats", "--help-all").out
    out = tmp_path / f"maps{suffix}"
    ran = run("stats", TEXT, "--pooled", out, "--top", "1")
    assert (ran.code, f"saved {out}" in ran.err) == (0, True)
    if suffix == ".html":
        assert "looks at the previous token (0.97, baseline 0.08)" in out.read_text("utf-8")
    elif suffix == ".csv":
        assert out.read_text("utf-8").count("\n") > 32 * 13 * 13
    else:
        assert run("show", "--from", out, "--head", "L2H1").code == 0


def test_what_is_said_of_predictions_is_explained(run):
    assert "an output head" in run("stats", "--explain", "importance").out
    assert "L without the head" in run("stats", "--explain", "ablation").out


def test_conditions_that_no_head_meets_are_answered_without_a_table(run):
    ran = run("stats", "The cat sat on the mat.", "--where", "offset=-2>0.9")
    assert ran.code == 0
    assert "· none of the 32 heads meets the conditions; figures measured beside the kernel" in ran.out
    assert "entropy" not in ran.out
