"""Output: files, standard output, other programs; completion, ``help``, and a bare text."""

import json
import re
import sys

import pytest

from attnscope.cli import all_commands, main
from attnscope.measures import explain
from attnscope.views import Table

TEXT = "The cat sat on the mat."


def test_numbers_are_printed_while_a_picture_is_saved(run, tmp_path):
    both = run("stats", TEXT, "--map", "entropy", "-o", tmp_path / "map.svg", "--json")
    assert json.loads(both.out)["heads"]
    assert (tmp_path / "map.svg").read_text("utf-8").startswith("<?xml")
    assert run("find", "cat -> The", TEXT, "-o", tmp_path / "find.png", "--csv").out.startswith("question,")
    assert (tmp_path / "find.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("out", "begin"), [("-", b"\x89PNG"), ("-.svg", b"<?xml"), ("-.npz", b"PK")])
def test_minus_as_output_is_standard_output(monkeypatch, capfdbinary, tmp_path, out, begin):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["attnscope", "show", TEXT, "-o", out])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    written, told = capfdbinary.readouterr()
    assert (ended.value.code or 0, told, written[: len(begin)]) == (0, b"", begin)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("-o - --json", "standard output takes one answer"),
        ("--open", "add -o FILE.png"),
        ("-o - --open", "add -o FILE.png"),
        ("--json --latex", "print one of --json and --latex"),
    ],
)
def test_conflicting_outputs_are_refused(run, typed, sentence):
    run("show", TEXT, *typed.split()).refuses(sentence)


def test_open_option_opens_the_saved_file(run, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("typer.launch", opened.append)
    assert run("show", TEXT, "--head", "L0H1", "-o", tmp_path / "a.svg", "--open").code == 0
    assert opened == [str(tmp_path / "a.svg")]


def test_configured_flag_can_be_turned_off(run, monkeypatch, tmp_path):
    usual = run("show", TEXT, "--head", "L0H1").out
    (tmp_path / "pyproject.toml").write_text("[tool.attnscope]\nhide-special = true")
    (tmp_path / "pyproject.toml").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    assert run("show", TEXT, "--head", "L0H1").out != usual
    assert run("show", TEXT, "--head", "L0H1", "--no-hide-special").out == usual


def test_help_word_and_bare_text_select_commands(run):
    assert run("help", "show").out == run("show", "-h").out
    assert run("help").out == run("--help").out
    alone = run(TEXT)
    assert alone.out == run("show", TEXT).out
    assert alone.err == f"attnscope show '{TEXT}'\n"
    run("shwo").refuses("No such command 'shwo'. Did you mean 'show'?")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_describes_each_option_in_one_line(run, monkeypatch, shell):
    monkeypatch.setenv("_ATTNSCOPE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "attnscope show --he")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    out = run().out
    assert "--head" in out
    assert "L2H1, or its number with --layer" in out
    assert len(out.splitlines()) == 2


NAMES_OF_OLD = (
    "--keep --second --text --heads --check-with --explain --list --no-title --completion --guessed"
)


def test_no_option_has_a_retired_name():
    assert not {*NAMES_OF_OLD.split()} & {
        name for one in all_commands() for each in one.params for name in each.opts
    }


def test_option_is_the_same_field_in_every_command():
    fields = {}
    for one in all_commands():
        for each in one.params:
            for name in each.opts:
                fields.setdefault(name, set()).add(
                    (each.name, each.is_flag if hasattr(each, "is_flag") else None)
                )
    several = {name: found for name, found in fields.items() if len(found) > 1 and name.startswith("-")}
    assert several == {}


CAUSAL = ("-m", "own-causal")
SCREENS = (
    *(["stats", TEXT], ["find", "cat -> The", TEXT], ["cut", "sat -> cat", TEXT, *CAUSAL]),
    *(["patch", "The cat sat", "--with-text", "The dog sat", *CAUSAL], ["ablate", TEXT, *CAUSAL]),
    *(["logits", TEXT, *CAUSAL], ["info", "own"], ["compare", "--composition", *CAUSAL]),
    *(["why", "sat -> cat", TEXT, "--head", "L1H0", *CAUSAL],),
    *(["circuit", "pairs.tsv", *CAUSAL], ["track", "gpt2", "short", "--texts", "texts.txt"]),
    *(["cachecost", "--texts", "texts.txt", *CAUSAL, "--sink", "1", "--recent", "2"],),
    *(["spans", "A cat. It slept.", "--pair", "1 -> 2"], ["find", "--gold", "bank.conllu"]),
)
"""Commands that print tables."""


def words_of(view):
    """The words of a table's columns: a column's name, and its unit on another line."""
    return {word for column in view.columns for word in re.split(r"\n|, ", column.name) if word}


def test_every_table_column_is_explained(run, place, monkeypatch):
    monkeypatch.chdir(place)
    seen = []
    monkeypatch.setattr("attnscope.render.terminal.print_views", lambda views, *_, **__: seen.extend(views))
    for typed in SCREENS:
        assert run(*typed).code == 0, typed
    words = {word for view in seen if isinstance(view, Table) for word in words_of(view)}
    assert len(words) > 15
    unexplained = set()
    for word in words:
        try:
            explain(word)
        except Exception:
            unexplained.add(word)
    assert sorted(unexplained) == []


def test_explanation_breaks_where_the_terminal_ends(run, monkeypatch):
    wide = run("explain", "importance").out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run("explain", "importance").out
    assert narrow.split() == wide.split()
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, wide.splitlines()))
    assert f"\n{' ' * 12}output, L the mean" in narrow
