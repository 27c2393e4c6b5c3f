"""A click on a cell of a head's map: why it attends there, and the command that prints it, in a browser."""

import os
import shlex
import subprocess
import sys

import pytest

import attnscope
from attnscope.attention import Head
from attnscope.errors import SelectionError
from attnscope.models import load
from attnscope.questions import why
from attnscope.questions.find import parse_questions
from attnscope.questions.head import one_head
from attnscope.questions.score_terms import name_token
from attnscope.render.page import graph_page
from tests.cli.run import ROOT
from tests.render.page.browser import MARKS

pytestmark = MARKS
TEXT = "The king's cat sat; it slept."
OPEN, SHUT = "L1H3", "L2H0"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    out = tmp_path_factory.mktemp("why") / "page.html"
    words = ["show", TEXT, "-m", "own-causal", "--head", OPEN, "-o", str(out)]
    subprocess.run(
        [sys.executable, "-m", "attnscope", *words], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    return out


def click(page, row, column):
    page.click(*page.over_cell(row, column))


def rows(page):
    found = page.run("[...element('rows').rows].map((row) => [...row.cells].map((cell) => cell.textContent))")
    return [(query, key, float(value), float(excess)) for query, key, value, excess in found]


def expected(row, column):
    """The five strongest terms of a cell, as ``why`` computes them."""
    model = load("own-causal")
    (cells,) = parse_questions(f"{row} -> {column}")
    (found,) = why.explain_head(model, model.prepare(TEXT), cells, Head(OPEN)).path
    return [(term.query, term.key, term.value, term.excess) for term in found.terms[:5]]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("cell", [(6, 2), (3, 3)])
def test_clicked_cell_opens_its_strongest_terms(opened, cell) -> None:
    assert opened.text("name").startswith(OPEN)
    assert opened.run("element('why').hidden")
    click(opened, *cell)
    shown = rows(opened)
    assert len(shown) == 5
    for found, term in zip(shown, expected(*cell), strict=True):
        assert found[:2] == term[:2]
        assert found[2:] == pytest.approx(term[2:], abs=0.0051)


def test_command_of_a_cell_runs_and_prints_the_same_terms(opened, run) -> None:
    click(opened, 6, 2)
    shown, words = rows(opened), shlex.split(opened.run("element('command').value"))
    answer = run.json(*words[1:])
    assert (answer["path"][0]["layer"], answer["path"][0]["head"]) == (1, 3)
    assert [(each["query"], each["key"]) for each in answer["path"][0]["terms"][:5]] == [
        each[:2] for each in shown
    ]


def test_cell_of_another_head_gives_the_command_alone(opened) -> None:
    click(opened, 6, 2)
    opened.run("openHead(2, 0)")
    assert opened.run("element('terms').hidden")
    assert f"--head {SHUT} '6 -> 2'" in opened.run("element('command').value")
    assert opened.text("asked").endswith(f"in {SHUT}")


def test_masked_cell_and_chosen_token_ask_nothing(opened) -> None:
    click(opened, 6, 2)
    assert not opened.run("element('why').hidden")
    click(opened, 2, 6)
    assert opened.run("element('why').hidden")
    click(opened, 6, 2)
    opened.press("Escape")
    assert opened.run("element('why').hidden")


def test_keys_ask_why_as_a_click_does(opened) -> None:
    opened.run("element('stage').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        opened.press(key)
    assert [found[:2] for found in rows(opened)] == [term[:2] for term in expected(1, 1)]


def test_open_cell_has_no_axe_violations(opened) -> None:
    click(opened, 6, 2)
    assert opened.violations() == []


def test_terms_beyond_the_bytes_of_a_page_are_named(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(why, "OPENED_BYTES", 10_000)
    assert run("show", TEXT, "-m", "own-causal", "--head", "L1H0,L1H1", "-o", tmp_path / "a.html").code == 0
    assert "heads open no terms: the terms of a page have at most 10 kB" in (tmp_path / "a.html").read_text(
        "utf-8"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("the cat " * 30,), "cells open in pages of one text of at most 40 tokens"),
        (("The xylophonist sat", "--words"), "each cell is one token: leave out --words"),
    ],
)
def test_named_head_without_terms_says_why(run, tmp_path, words, reason) -> None:
    page = tmp_path / "a.html"
    assert run("show", *words, "-m", "own-causal", "--head", OPEN, "-o", page).code == 0
    assert f"the cells of the named heads open no terms: {reason}" in page.read_text("utf-8")


def test_exported_page_opens_the_same_cells_as_show(chromium, run, path, tmp_path) -> None:
    words = "export", TEXT, "-m", "own-causal", "--layer", "1", "--head", "3", "--format", "html"
    assert run(*words, "-o", tmp_path / "out").code == 0
    found = []
    for each in (path, tmp_path / "out" / "heads.html"):
        chromium.load(each)
        click(chromium, 6, 2)
        found.append((rows(chromium), chromium.run("element('command').value")))
    assert found[0] == found[1]


def test_page_of_a_run_opens_the_same_cells_as_show(chromium, path, tmp_path) -> None:
    run = attnscope.load("own-causal").read(TEXT)
    run.page(OPEN).save(tmp_path / "a.html")
    found = []
    for each in (path, tmp_path / "a.html"):
        chromium.open_anew(each)
        click(chromium, 6, 2)
        found.append((chromium.text("asked"), rows(chromium)))
    assert found[0] == found[1]
    assert chromium.run("element('typed').hidden")  # no command reads a run
    assert "opens the strongest terms" not in run.page().html
    with pytest.raises(SelectionError, match="no head L9H0: this model has layers 0-"):
        run.page([OPEN, "L9H0"])


def test_page_over_prompts_says_that_its_maps_are_means(run, tmp_path) -> None:
    (tmp_path / "p.csv").write_text("A,B\nking,cat\nqueen,dog\n", "utf-8")
    words = "why", "{B} -> {A}", "The {A} saw the {B}", "--prompts", tmp_path / "p.csv", "-m", "own-causal"
    assert run(*words, "--head", OPEN, "-o", tmp_path / "a.html").code == 0
    title = f"<p class='quiet'>{OPEN} · own-causal · mean of 2 prompts of “The {{A}} saw the {{B}}”"
    assert title in (tmp_path / "a.html").read_text("utf-8")


def test_page_refuses_a_head_that_does_not_exist(run, tmp_path) -> None:
    words = "show", TEXT, "-m", "own-causal", "--head", "L9H0", "-o", tmp_path / "a.html"
    run(*words).refuses("no head L9H0: this model has layers 0-")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """The page of why itself, whose cells are links."""
    model, out = load("own-causal"), tmp_path_factory.mktemp("graph") / "why.html"
    prepared, head = model.prepare(TEXT), Head(OPEN)
    found = why.explain_head(model, prepared, parse_questions("6 -> 2")[0], head)
    maps = {found.path[0].head: one_head(model, prepared, head).heatmap}
    answer = why.why_answer(found, maps=maps, opened=dict(why.explain_cells(model, prepared, [head])))
    out.write_text(graph_page(answer.pictures["why"]), "utf-8")
    return out


def test_page_of_why_keeps_still_and_marks_the_clicked_cell(chromium, graph) -> None:
    chromium.size(900, 400)
    chromium.load(graph)
    tokens = load("own-causal").prepare(TEXT).tokens
    for cell in ((6, 2), (3, 3)):
        link = "document.querySelector(`a[href='#cell-{}-{}'] rect`)".format(*cell)
        chromium.run(f"{link}.scrollIntoView({{block: 'end'}})")
        left, top, right, bottom = chromium.box(link)
        scrolled = chromium.run("scrollY")
        assert scrolled > 0
        chromium.click((left + right) / 2, (top + bottom) / 2)
        assert chromium.run("scrollY") == scrolled
        shown = "[...document.querySelectorAll('.opened')].filter((each) => each.offsetHeight)"
        (heading,) = chromium.run(f"{shown}.map((each) => each.querySelector('h2').textContent)")
        assert heading.partition(":")[0] == " → ".join(name_token(tokens, at) for at in cell)
        assert chromium.box(f"{shown}[0].querySelector('.mark rect')") == pytest.approx(
            [left, top, right, bottom], abs=2
        )
    assert chromium.texts("th[scope]")[2:4] == ["excess", "feeds the"]
