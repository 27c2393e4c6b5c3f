"""Every JSON answer fits its schema, SKILL.md is correct, and errors can be JSON."""

import json
import re
import shlex
from unittest.mock import Mock

import jsonschema
import pytest

from attnscope.cli import build
from attnscope.cli.commands import NAMES
from attnscope.cli.commands.skill import SKILL
from attnscope.errors import SelectionError
from attnscope.questions.answer import VERSION, printed_records, schema_of
from tests.cli.test_show import HALF_SEEN

WORDS = {"TEXT": "The cat saw it.", "OTHER": "The dog saw it."}
ASKED = {
    "show TEXT": "|--head L1H1 --words|--token cat|--weighting norm",
    "show TEXT -m ./gpt2 --loss": "|--head L0H1",
    "show TEXT --second-text 'It slept.' -m ./t5": "|--head 'cross L0H1'|--token 2",
    "show --image a.png -m ./vit": "--token 1,1",
    "stats": "TEXT|TEXT --sort coverage90 --layer 1|TEXT --by-position previous|TEXT --faithful --layer 0|"
    "--texts texts.txt",
    "ablate TEXT": "|--head L2H1|--importance",
    "compare TEXT": "|--head 1|L1H1 L2H1|--with-text OTHER|--with-text OTHER --head L1H1|--with-model own",
    "compare": "TEXT L1H0 --composition -m own-causal|--texts texts.txt",
    "find 'it -> cat' TEXT": "",
    "spans TEXT": "|--pair '1 -> 1'|-m own-causal --truncate --max-tokens 4 --generate 3 --written",
    "examples --texts texts.txt": "|L1H1 --by previous",
    "rule --texts texts.txt": "|L1H1",
    "flow TEXT": "|--method relevance|--faithful",
    "cut TEXT 'it -> cat'": "|--head L0H1",
    "patch TEXT --with-text OTHER": "|--fast",
    "why 'it -> cat' TEXT --head L2H1": "|--depth 2|--against 'it -> The'",
    "circuit pairs.tsv -m own-causal": "",
    "logits TEXT -m ./gpt2": "--by head|--by layer",
    "cachecost -m own-causal --recent 1 --sink 1 --texts texts.txt --limit 1 --full-heads 0.5": "",
    "info": "own TEXT|./gpt2 --copying|./t5",
    "align tone.wav TEXT -m ./whisper": "|--rank",
    "export TEXT --format png,npz --layer 0 --head 1 -o made/described --force": "",
}


def validate(command, run, *words):
    ran = run(command, *words, "--json")
    assert ran.code in (0, 1), ran.err
    schema, answer = schema_of(command), json.loads(ran.out)
    jsonschema.Draft202012Validator(schema).validate(answer)
    assert next(iter(answer.items())) == ("schema", schema["$id"])
    return answer


@pytest.mark.sweep
@pytest.mark.parametrize("asked", [f"{first} {one}" for first, of in ASKED.items() for one in of.split("|")])
def test_json_answer_fits_its_schema(run, place, monkeypatch, asked):
    monkeypatch.chdir(place)
    command, *words = (WORDS.get(word, word) for word in shlex.split(asked))
    validate(command, run, *words)


@pytest.mark.parametrize("text", [WORDS["TEXT"], "It was a mat."])
def test_check_json_fits_its_schema(run, tmp_path, text):
    run("check", WORDS["TEXT"], "--save-snapshot", tmp_path / "before.json")
    validate("check", run, "L0H7.next > 0.9", text, "--with-snapshot", tmp_path / "before.json")


@pytest.mark.sweep(3)
@pytest.mark.parametrize("command", printed_records())
def test_schema_describes_every_field_and_its_version(run, command):
    (line,) = run("schema", command).out.splitlines()
    schema = json.loads(line)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == schema_of(command)
    assert schema["$id"] == f"urn:attnscope:{command}:{VERSION}"

    def undescribed(shape, where):
        for name, part in shape.get("properties", {}).items():
            if not part.get("description"):
                yield f"{where}.{name}"
            yield from undescribed(part, f"{where}.{name}")
        for part in (*shape.get("anyOf", ()), shape.get("items"), shape.get("additionalProperties")):
            if isinstance(part, dict):
                yield from undescribed(part, where)

    assert not list(undescribed(schema, command))


def test_every_command_with_json_has_a_schema():
    with_json = {name for name in NAMES if any("--json" in each.opts for each in build(name).params)}
    assert with_json == set(printed_records())


def test_audit_json_with_mixers_fits_its_schema(run, tmp_path):
    (tmp_path / "mixing.py").write_text(HALF_SEEN.format("Block"))
    assert validate("info", run, "-m", f"{tmp_path}/mixing.py:Model", "--audit")["mixers"]


def test_schema_is_indented_in_a_terminal(run, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = run("schema", "show").out
    assert shown.startswith('{\n  "$schema"')
    assert json.loads(shown) == schema_of("show")


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


def test_skill_is_printed_unchanged(run):
    assert run("skill").out == SKILL.read_text("utf-8")


@pytest.mark.parametrize(("command", "told"), [row[1:] for row in ROWS], ids=lambda text: text[:30])
def test_skill_options_and_fields_exist(command, told):
    for each in re.findall(r"`([^`]+)`", command):
        name, *words = each.split()
        if not name.startswith("--"):
            known = {option for parameter in build(name).params for option in parameter.opts}
            assert {word.strip("[]") for word in words if re.match(r"\[?--?\w", word)} <= known
    name = re.search(r"`(\w+)", command)[1]
    have = fields(schema_of(name)) | {"NAME", "query", "key"} if name in printed_records() else set()
    for each in re.findall(r"`([^`]+)`", told):
        assert set(re.findall(r"\w+", each)) <= have, f"{name} has no {each}"


@pytest.mark.parametrize(
    ("words", "error", "suggestion"),
    [
        (
            "show TEXT --head L9H9 --json",
            "no head L9H9: this model has layers 0-3",
            "this model has layers 0-3",
        ),
        ("show TEXT --json --hed L0H0", "No such option: --hed (Possible options: --head", "--head"),
        ("show TEXT -m nowhere/at/all --json", "nowhere/at/all", None),
        ("show --json --head L9H9 -- '-1 -> --json'", "no head L9H9", "this model has layers"),
        ("show TEXT --json -m", "-m", None),
        ("no-such-command --json", "no-such-command", None),
        ("--json", "--json", None),
        ("show TEXT --head L9H9 -- --json", None, None),
        ("show --head --json TEXT", None, None),
    ],
)
def test_error_is_json_with_json_option(run, words, error, suggestion):
    ran = run(*(WORDS.get(word, word) for word in shlex.split(words)))
    assert ran.code == 2
    assert ran.err.startswith("{") == (error is not None)
    if error is not None:
        told = json.loads(ran.err)
        assert error in told["error"]
        assert suggestion is None or told["suggestion"].startswith(suggestion)
        assert told["exit_code"] == 2


def test_suggestion_is_no_note_and_no_name_that_was_typed(run, place, monkeypatch):
    error = SelectionError(
        "no layer 9: this model has layers 0-3", ["no attention in layer 1: it is a convolution"]
    )
    assert str(error).endswith("it is a convolution")
    monkeypatch.setattr("attnscope.questions.stats.overview", Mock(side_effect=error))
    told = json.loads(run("show", "The cat.", "--json").err)
    assert (told["error"], told["suggestion"]) == (str(error), "this model has layers 0-3")
    for raised in (ValueError("so: not"), OSError(2, "No such file", "a.txt")):
        monkeypatch.setattr("attnscope.questions.stats.overview", Mock(side_effect=raised))
        assert json.loads(run("show", "The cat.", "--json").err)["suggestion"] is None
    assert json.loads(run("show", "--file", "b.txt", "--json").err)["suggestion"] is None


def test_jsonl_lines_equal_the_answers_for_single_texts(run, tmp_path):
    corpus, texts = tmp_path / "corpus.txt", list(WORDS.values())
    corpus.write_text("\n\n".join(texts))
    lines = run("stats", "--texts", corpus, "--jsonl").out.splitlines()
    for line, text in zip(lines, texts, strict=True):
        scores = json.loads(line)
        assert scores.pop("where").startswith("line ")
        assert scores.pop("options") == {"--texts": str(corpus)}
        assert {**scores, "options": {}} == run.json("stats", text, "--no-cache")
