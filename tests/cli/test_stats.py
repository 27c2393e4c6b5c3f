"""``stats`` and ``check``, of a text and of a corpus: sorting, filtering, weighting, and claims."""

import csv
import itertools
import json
import re
import shlex
from importlib import import_module
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from attnscope.errors import SelectionError
from attnscope.models import load
from attnscope.questions.conditions import parse_conditions
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.render.latex import escape_latex
from tests.models.folders import minilm

TEXT = "The cat sat on the mat because it was tired."
TEXTS = [TEXT, "It slept.", "The dog barked at the cat on the mat."]


def heads(run, *arguments):
    return run.json("stats", TEXT, "-m", minilm(), *arguments)["heads"]


def test_csv_names_heads_as_options_take_them_and_explains_empty_columns(run):
    rows, ran = run.csv("stats", TEXT), run("stats", "The cat sat.", "-m", "own-causal", "--csv")
    assert [each["name"] for each in rows] == [f"L{each['layer']}H{each['head']}" for each in rows]
    (shown,) = run.json("stats", TEXT, "--head", rows[3]["name"])["heads"]
    assert f"{shown['scores']['entropy']['value']:.6f}" == f"{float(rows[3]['entropy']):.6f}"
    names, *cells = csv.reader(ran.out.splitlines())
    empty = [name for name, *column in zip(names, *cells, strict=True) if not any(column)]
    named = [name for name in empty if not name.endswith("_baseline")]
    assert sorted(named) == ["duplicate", "induction", "segment"]
    assert f"empty columns: {', '.join(named)}; each is averaged over rows that" in " ".join(ran.err.split())
    assert "empty" not in run("stats", "The cat sat.", "-m", "own-causal").err


def test_latex_table_has_the_printed_cells(run):
    asked = ("stats", TEXT, "--sort", "[CLS]", "--top", "3")
    out = run(*asked, "--latex").out
    names, *rows = [line.removesuffix(r" \\").split(" & ") for line in out.splitlines() if " & " in line]
    assert names[0] == "head"
    for row, head in zip(rows, run.json(*asked)["heads"], strict=True):
        assert row[0] == f"L{head['layer']}H{head['head']}"
        score = head["scores"]["[CLS]"]
        assert row[names.index("[CLS] (baseline)")] == f"{score['value']:.2f} ({score['baseline']:.2f})"
    assert [out.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]


def test_unreached_roles_of_repeats_are_named_with_their_strongest_head(run):
    repeated = "The old man walked slowly to the sea and the old man walked slowly to the house."
    every = run.json("stats", repeated, "-m", "own-causal")["heads"]
    best = max(every, key=lambda head: head["scores"]["induction"]["value"])
    value = best["scores"]["induction"]["value"]
    sentence = f"no head reaches 0.4 in induction (highest: L{best['layer']}H{best['head']} {value:.2f})"
    said = " ".join(run("stats", repeated, "-m", "own-causal").out.split())
    assert value < 0.4
    assert sentence in said
    assert "; --repeat-random 20 measures random tokens, read twice" in said
    assert "no head reaches" not in run("stats", repeated, "-m", "own-causal", "--sort", "entropy").out
    assert "no head reaches" not in run("stats", TEXT).out  # "the" twice is too few
    random = run("stats", "--repeat-random", "20", "-m", "own-causal").out
    assert "in induction" not in random
    assert "--repeat-random" not in random
    mapped = run("stats", repeated, "-m", "own-causal", "--map", "induction").out
    assert "a head has the role induction from 0.4 on" in mapped


def test_table_sorted_by_a_measure_holds_it_once(run):
    asked = ("stats", "--repeat-random", "20", "-m", "own-causal", "--sort", "induction", "--top", "2")
    names, *_ = [line.split() for line in run(*asked).out.splitlines() if line.startswith("head ")]
    assert names == ["head", "role", "induction", "entropy", "distance", "previous", "first"]
    assert run(*asked).out.count("score of") == 0


def test_latex_map_has_a_row_per_layer(run):
    lines = run("stats", TEXT, "--map", "entropy", "--latex").out.splitlines()
    scores = {(each["layer"], each["head"]): each["scores"] for each in run.json("stats", TEXT)["heads"]}
    assert lines[0].startswith("% entropy")
    assert lines[4].startswith("layer / head & H0 & ")
    assert [line.partition(" ")[0] for line in lines[6:10]] == ["L0", "L1", "L2", "L3"]
    assert lines[7].split(" & ")[3] == f"{scores[1, 2]['entropy']['value']:.2f}"


def test_latex_of_one_head_has_its_weights_and_names_its_axes(run):
    asked = ("show", "The cat_ sat", "-m", "own-causal", "--head", "L1H1")
    weights = run.json(*asked)["weights"]
    lines = run(*asked, "--latex").out.splitlines()
    names, *rows = [line.removesuffix(r" \\").split(" & ") for line in lines if " & " in line]
    assert names[0] == "query (attends) / key (attended to)"
    assert lines[0].startswith("% L1H1")
    for number, (row, expected) in enumerate(zip(rows, weights, strict=True)):
        assert row[0] == names[number + 1]
        cells = [f"{weight:.2f}" if key <= number else "--" for key, weight in enumerate(expected)]
        assert row[1:] == cells


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a_b & 50% #1 ${x}", r"a\_b \& 50\% \#1 \$\{x\}"),
     ("\\^~", r"\textbackslash{}\textasciicircum{}\textasciitilde{}"),
     ("<s> – ±", r"\textless{}s\textgreater{} -- $\pm$")],
)  # fmt: skip
def test_latex_special_characters_are_escaped(text, expected):
    assert escape_latex(text) == expected


def test_stats_sorts_by_measure_and_top_limits_rows(run):
    every, top = (heads(run, *asked) for asked in ((), ("--sort", "distance", "--top", "7")))
    values = sorted((head["scores"]["distance"]["value"] for head in every), reverse=True)
    assert [head["scores"]["distance"]["value"] for head in top] == values[:7]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("cell", ["share", "mean", "max"])
def test_pooled_cells_follow_the_cell_option(run, tmp_path, cell):
    text, path = TEXT * 30, tmp_path / "maps.npz"  # more tokens than cells
    run("stats", text, "--pooled", path, "--cell", cell, "--top", "1")
    model = load("own")
    maps = {}
    for pool in ("share", "mean", "max"):
        layers = measure_heads(model, model.prepare(text), Selection(), pool=pool).maps.kinds["encoder"]
        maps[pool] = np.stack([weights.values for _, weights in layers])
    with np.load(path) as saved:
        found = np.stack([saved[name] for name in saved.files if saved[name].ndim == 3])
    assert [pool for pool, each in maps.items() if np.allclose(found, each, atol=1e-6)] == [cell]


def test_where_lists_only_matching_heads(run):
    firsts, others = heads(run, "--where", "role=first"), heads(run, "--where", "role!=first")
    assert {head["role"]["name"] for head in firsts} == {"first"}
    assert len(others) + len(firsts) == 72
    sharp = [head for head in firsts if head["scores"]["entropy"]["value"] < 1]
    assert heads(run, "--where", "entropy<1 and role=first") == sharp != []


def test_heads_are_sorted_by_role_score_above_baseline(run):
    """The lifts, from the JSON, fall; heads on even attention and heads without a pattern come last."""
    roles = [each["role"] for each in heads(run)]
    assert len(roles) == 72
    told = [role for role in roles if role["name"] not in ("broad", "sharp", "none")]
    lifts = [role["score"] - role["baseline"] for role in told]
    assert lifts == sorted(lifts, reverse=True)
    assert roles[: len(told)] == told
    grouped = [each["role"]["name"] for each in heads(run, "--sort", "role")]
    assert len([name for name, _ in itertools.groupby(grouped)]) == len(set(grouped))
    places = [(each["layer"], each["head"]) for each in heads(run, "--sort", "head")]
    assert places == sorted(places)


def test_single_head_keeps_its_role(run):
    (one,) = heads(run, "--head", "L1H3")
    assert (one["layer"], one["head"]) == (1, 3)
    assert one in heads(run)


def test_condition_on_absent_score_is_not_met():
    model, (condition,) = load("own"), parse_conditions("segment>=0")
    seen = measure_heads(model, model.prepare(TEXT), Selection(layers=(0,)))
    assert not any(condition.meets(head) for head in seen.heads)


def test_conditions_parse_with_or_without_spaces():
    spaced = "entropy < 1  and  previous >= 0.5"
    assert parse_conditions("entropy<1 and previous>=0.5") == parse_conditions(spaced)
    with pytest.raises(SelectionError):
        parse_conditions("")


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "asked", ["show", "show --head L0H1", "show --token cat", "stats", "find 'it -> cat'", "spans", "compare"]
)
def test_title_and_json_name_the_weighting_and_scores_differ(run, asked):
    command = (*shlex.split(asked), TEXT)
    assert "weighted by norm" in " ".join(run(*command, "--weighting", "norm").out.split())
    raw, norm = (run.json(*command, "--weighting", name) for name in ("raw", "norm"))
    assert "weigh" not in raw
    assert norm.pop("weigh") == "norm"
    assert norm | {"notes": []} != raw | {"notes": []}
    assert norm.keys() == raw.keys()


def test_gradient_weighting_uses_the_named_target(run):
    words = ("show", "The cat sat on the", "-m", "own-causal", "--weighting", "gradient", "--target", "mat")
    seen = run.json(*words)
    assert (seen["weigh"], seen["target"]) == ("gradient", "mat")
    assert any("the prediction: 'mat'" in note for note in seen["notes"])


def test_gradient_weighting_uses_each_texts_prediction(run, tmp_path):
    corpus, words = tmp_path / "texts.txt", ("stats", "-m", "own-causal", "--weighting", "gradient", "--csv")
    seen = set()
    for animal in ("dog", "cat"):
        corpus.write_text(f"The cat sat on the\nThe {animal} sat on the\n")
        seen.add(run(*words, "--texts", corpus).out)
    assert len(seen) == 2


def test_export_manifest_names_the_weighting(run, tmp_path):
    run("export", TEXT, "--weighting", "norm", "--format", "npz", "-o", tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["weigh"] == "norm"
    assert "--weighting norm" in manifest["command"]


def test_checkpoint_of_another_weighting_is_refused(run, tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text(f"{TEXT}\nA dog.\n")
    asked = ("stats", "--texts", corpus, "--checkpoint", tmp_path / "sums.json")
    first = run(*asked, "--weighting", "norm")
    assert "weighted by norm" in " ".join(first.out.split())
    assert run(*asked, "--weighting", "norm").out == first.out
    run(*asked).refuses("another weighting")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), "utf-8")
    return path


def test_failed_claim_exits_with_1(run, corpus):
    ran = run("check", "L2H1.previous > 0.8", "L2H1.next > 0.8", "--texts", corpus)
    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines()] == ["ok", "FAILED"]


def test_snapshot_is_saved_and_compared(run, corpus, tmp_path):
    kept = tmp_path / "kept.json"
    assert run("check", "--texts", corpus, "--save-snapshot", kept).code == 0
    same = run("check", "--texts", corpus, "--with-snapshot", kept, "--tolerance", "0")
    assert (same.code, same.out.split()) == (0, ["ok", "snapshot", "all", "within", "0"])
    other = run("check", TEXTS[1], "--with-snapshot", kept)
    assert other.code == 1
    assert other.out.startswith("FAILED  snapshot")
    assert other.out.count(" before, ") == 10
    assert other.out.partition("· the texts differ")[0].rstrip().endswith(" more")


def test_json_and_csv_have_standard_errors(run, corpus):
    asked = ("stats", "--texts", corpus, "--sort", "previous", "--top", "1")
    (head,), (row,) = run.json(*asked)["heads"], run.csv(*asked)
    score = head["scores"]["previous"]
    assert float(row["previous_error"]) == score["error"] > 0
    assert score["texts"] == 3


def test_many_unreadable_lines_are_counted(run, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "The cat."}\n' + "x\n" * 30)
    ran = run("stats", "--texts", path, "--top", "1")
    assert len(ran.err.splitlines()) == 21
    assert "30 texts could not be read: line 2, line 3, line 4, ..." in ran.out


def test_ctrl_c_message_says_how_to_resume(run, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.models.model.Model.run", Mock(side_effect=KeyboardInterrupt))
    ran = run("stats", "--texts", corpus)
    assert (ran.code, ran.err) == (130, "attnscope: stopped; give --checkpoint FILE to resume\n")
    ran = run("stats", "--texts", corpus, "--checkpoint", tmp_path / "sums.json")
    assert "the same command resumes from" in ran.err


def test_terminal_lists_twenty_heads_and_a_pipe_all(run, monkeypatch):
    piped = run("stats", TEXTS[0]).out
    assert len(re.findall(r"^L\dH\d ", piped, re.M)) == 32
    command = import_module("attnscope.cli.commands.stats")
    monkeypatch.setattr(command, "sys", Mock(**{"stdout.isatty.return_value": True}))
    shown = run("stats", TEXTS[0]).out
    assert re.findall(r"^L\dH\d ", shown, re.M) == re.findall(r"^L\dH\d ", piped, re.M)[:20]
    assert "20 of 32 heads, clearest role first; 12 more: --top 0" in shown
    for options, count in ((("--top", "0"), 32), (("--top", "25"), 25), (("--latex",), 32)):
        assert len(re.findall(r"^L\dH\d ", run("stats", TEXTS[0], *options).out, re.M)) == count
    assert len(run.json("stats", TEXTS[0])["heads"]) == 32


@pytest.mark.parametrize(("sort", "order"), [("distance", "largest"), ("-distance", "smallest")])
def test_footer_names_the_order_and_minus_reverses_it(run, sort, order):
    values = [head["scores"]["distance"]["value"] for head in heads(run, "--sort", sort)]
    assert values == sorted(values, reverse=order == "largest")
    assert (
        f"3 of 72 heads, {order} distance first\n"
        in run("stats", TEXT, "-m", minilm(), "--sort", sort, "--top", "3").out
    )
    assert heads(run, "--sort", "-head") == heads(run, "--sort", "head")[::-1]


def test_several_heads_are_measured_and_plotted_under_their_names(run):
    every = {f"L{head['layer']}H{head['head']}": head for head in heads(run)}
    listed = heads(run, "--head", "L1H3,L0H2", "--sort", "head")
    assert listed == [every["L0H2"], every["L1H3"]]
    curves = run.json("stats", TEXT, "-m", minilm(), "--by-position", "entropy", "--head", "L1H3,L0H2")[
        "curves"
    ]
    all_curves = run.json("stats", TEXT, "-m", minilm(), "--by-position", "entropy", "--top", "0")["curves"]
    assert [each for each in all_curves if each["head"] in ("L1H3", "L0H2")] == curves
    assert len(curves) == 2
    model = load("own")
    measured = measure_heads(model, model.prepare(TEXT), Selection(number=3)).heads
    assert [head.name for head in measured] == ["L0H3", "L1H3", "L2H3", "L3H3"]


def test_corpus_table_has_errors_in_the_sorted_column_and_the_file(run, tmp_path):
    (tmp_path / "cats.txt").write_text("\n".join(TEXTS), "utf-8")
    asked = ("stats", "--texts", tmp_path / "cats.txt", "--sort", "-entropy", "--top", "9")
    lines, found = run(*asked).out.splitlines(), run.json(*asked)["heads"]
    assert " cats.txt: 3 texts, " in lines[0]
    for line, head in zip(lines[3:], found, strict=False):
        entropy = head["scores"]["entropy"]
        assert f"{entropy['value']:.3f} ±{entropy['error']:.3f}" in line
        assert line.startswith(f"L{head['layer']}H{head['head']} {head['role']['name']} ")


def test_latex_file_says_its_source_in_comments_and_units_in_brackets(run, tmp_path):
    asked = ("stats", "The cat\n\\input{x} %sat", "--top", "3", "--sort=-entropy")
    printed = run(*asked, "--latex").out
    assert run(*asked, "-o", tmp_path / "a.tex").code == 0
    assert (tmp_path / "a.tex").read_text("utf-8") == printed
    assert "--csv" not in printed  # which a terminal says
    lines = printed.splitlines()
    assert lines[-1].startswith("% attnscope ")
    assert "model own · The cat⏎\\input{x} %sat · --sort -entropy · --top 3" in lines[-1]
    assert [line for line in lines if "\\input" in line] == [lines[-1]]
    assert r"head & role & entropy (baseline), nats \\" in lines  # a table for a paper: no other measure
    assert " · model sha256 " in lines[-1]
    assert f" · torch {torch.__version__}" in lines[-1]
    assert "& entropy (nats) & distance (tokens) & previous &" in run("stats", TEXT, "--latex").out
    assert "% 3 of 32 heads, smallest entropy first" in lines
    run("stats", TEXT, "--map", "entropy", "-o", tmp_path / "b.tex").refuses("a .tex file holds the table")
