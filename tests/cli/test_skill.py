"""What agents read: SKILL.md says what is true, and errors are JSON for those who ask for JSON."""

import json
import re

import pytest

from attnscope.cli.commands import find_command
from attnscope.cli.commands.skill import SKILL
from attnscope.questions.answer import printed_records, schema_of

TEXT = "The cat sat on the mat."
ROWS = [
    [cell.strip() for cell in line.split("|")[1:4]]
    for line in SKILL.read_text("utf-8").splitlines()
    if line.startswith("| ") and "`" in line
]


def fields(shape):
    """Every name of a field in a schema."""
    if isinstance(shape, dict):
        names = set(shape.get("properties", {}))
        return names.union(*(fields(each) for each in shape.values()))
    return set().union(*(fields(each) for each in shape)) if isinstance(shape, list) else set()


def test_the_skill_is_printed_as_it_is(run):
    assert run("skill").out == SKILL.read_text("utf-8")


@pytest.mark.parametrize(("command", "told"), [row[1:] for row in ROWS], ids=lambda text: text[:30])
def test_each_command_of_the_skill_has_its_options_and_its_fields(command, told):
    for each in re.findall(r"`([^`]+)`", command):
        name, *words = each.split()
        if not name.startswith("--"):
            known = {option for parameter in find_command(name).params for option in parameter.opts}
            assert {word.strip("[]") for word in words if re.match(r"\[?--?\w", word)} <= known
    name = re.search(r"`(\w+)", command)[1]
    have = fields(schema_of(name)) | {"NAME", "query", "key"} if name in printed_records() else set()
    for each in re.findall(r"`([^`]+)`", told):
        assert set(re.findall(r"\w+", each)) <= have, f"{name} has no {each}"


@pytest.mark.parametrize(
    ("words", "error", "suggestion"),
    [
        (
            ("show", TEXT, "--head", "L9H9"),
            "no head L9H9: this model has layers 0-3, heads 0-7",
            "this model has layers 0-3, heads 0-7",
        ),
        (
            ("show", TEXT, "--hed", "L0H0"),
            "no option --hed: did you mean --head or",
            "did you mean --head or",
        ),
        (("show", TEXT, "-m", "nowhere/at/all"), "nowhere/at/all", None),
    ],
)
def test_an_error_is_json_for_those_who_ask_for_json(run, words, error, suggestion):
    ran = run(*words, "--json")
    assert ran.code == 2
    told = json.loads(ran.err)
    assert error in told["error"]
    assert suggestion is None or told["suggestion"].startswith(suggestion)
    assert told["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "is_json"),
    [
        (("show", TEXT, "--head", "L9H9", "--", "--json"), False),
        (("show", "--head", "--json", TEXT), False),
        (("show", "-m", "nowhere/at/all", "--", "--json"), False),
        (("show", "--json", "--head", "L9H9", "--", "-1 -> --json"), True),
        (("show", TEXT, "--no-such", "--json"), True),
        (("show", TEXT, "--json", "-m"), True),
        (("no-such-command", "--json"), True),
        (("--json",), True),
    ],
)
def test_an_error_is_json_only_where_json_was_typed_as_an_option(run, words, is_json):
    ran = run(*words)
    assert ran.code == 2
    assert ran.err.startswith("{") == is_json


def test_each_text_of_a_corpus_is_a_line_that_its_own_look_gives(run, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{TEXT}\n\nThe dog barked.\n")
    lines = run("stats", "--texts", str(corpus), "--jsonl").out.splitlines()
    for line, text in zip(lines, (TEXT, "The dog barked."), strict=True):
        figures, alone = json.loads(line), run.json("stats", text, "--no-cache")
        assert figures.pop("where").startswith("line ")
        assert figures == alone
