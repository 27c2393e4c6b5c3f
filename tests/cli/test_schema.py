"""Every answer in JSON is what its schema says, and every field is described."""

import json
import shlex

import jsonschema
import pytest

from attnscope.cli.commands import NAMES, find_command
from attnscope.questions.answer import VERSION, printed_records
from tests.models.folders import t5
from tests.models.images import picture, vision

TEXT = "The cat saw it."
OTHER = "--with-text 'The dog saw it.'"
ASKED = {
    "show": ("", "--head L1H1 --words", "--token cat", "--weigh norm"),
    "stats": ("", "--sort coverage90 --layer 1", "--by-position previous", "--faithful --layer 0"),
    "ablate": ("", "--head L2H1", "--importance"),
    "compare": (
        "",
        "--head 1",
        "L1H0 --composition -m own-causal",
        OTHER,
        f"{OTHER} --head L1H1",
        "--with-model own",
    ),
    "find": ("'it -> cat'",),
    "spans": ("", "--pair '1 -> 1'", "-m own-causal --truncate --max-tokens 4 --generate 3 --written"),
    "flow": ("", "--method relevance", "--faithful"),
    "cut": ("'it -> cat'", "'it -> cat' --head L0H1"),
    "patch": (OTHER, f"{OTHER} --fast"),
    "info": ("", "--audit"),
    "export": ("--format png,npz --layers 0 --heads 1 -o FOLDER",),
}


SCHEMAS = {}
"""By command: what holds of its answers, printed and checked once."""


def schema_of(command, run):
    if command not in SCHEMAS:
        SCHEMAS[command] = json.loads(run("schema", command).out)
        jsonschema.Draft202012Validator.check_schema(SCHEMAS[command])
    return SCHEMAS[command]


def validate(ran, command, run):
    assert ran.code in (0, 1), ran.err
    schema, answer = schema_of(command, run), json.loads(ran.out)
    jsonschema.Draft202012Validator(schema).validate(answer)
    assert next(iter(answer.items())) == ("schema", schema["$id"])


@pytest.mark.parametrize(("command", "asked"), [(name, each) for name, of in ASKED.items() for each in of])
def test_an_answer_is_what_its_schema_says(run, tmp_path, command, asked):
    words = [str(tmp_path / "out") if word == "FOLDER" else word for word in shlex.split(asked)]
    text = {"find": [*words, TEXT], "info": ["own", TEXT, *words]}.get(command, [TEXT, *words])
    validate(run(command, *text, "--json"), command, run)


def test_two_heads_a_corpus_and_claims_too(run, tmp_path, causal_folder):
    for by in ("head", "layer"):
        validate(run("logits", TEXT, "-m", causal_folder, "--by", by, "--json"), "logits", run)
    validate(run("info", causal_folder, "--copying", "--json"), "info", run)
    for asked in ([], ["--head", "L0H1"]):
        validate(run("show", TEXT, "-m", causal_folder, "--loss", *asked, "--json"), "show", run)
    (tmp_path / "pairs.tsv").write_text("The cat sat\tThe dog sat\n")
    validate(run("circuit", tmp_path / "pairs.tsv", "-m", "own-causal", "--json"), "circuit", run)
    validate(run("compare", TEXT, "L1H1", "L2H1", "--json"), "compare", run)
    (tmp_path / "texts.txt").write_text("The cat sat.\nA dog ran off.\n")
    asked = ("cachecost", "-m", "own-causal", "--recent", "1", "--sink", "1")
    validate(run(*asked, "--texts", tmp_path / "texts.txt", "--json"), "cachecost", run)
    validate(run("stats", "--texts", tmp_path / "texts.txt", "--json"), "stats", run)
    validate(run("compare", "--texts", tmp_path / "texts.txt", "--json"), "compare", run)
    run("check", "--text", TEXT, "--save", tmp_path / "before.json")
    for text in (TEXT, "It was a mat."):
        asked = ["check", "L0H7.next > 0.9", "--text", text, "--against", tmp_path / "before.json", "--json"]
        validate(run(*asked), "check", run)


def test_images_and_pairs_too(run, tmp_path):
    image = ["--image", picture(tmp_path / "a.png"), "-m", vision(tmp_path / "dinov2", "dinov2")]
    validate(run("show", *image, "--token", "1,1", "--json"), "show", run)
    folder = t5(tmp_path / "t5")
    for asked in ([], ["--head", "cross L0H1"], ["--token", "2"]):
        validate(run("show", TEXT, "It slept.", "-m", folder, *asked, "--json"), "show", run)
    validate(run("info", folder, "--json"), "info", run)


@pytest.mark.parametrize("command", printed_records())
def test_every_field_is_described_and_the_version_told(run, command):
    schema = schema_of(command, run)
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
    with_json = {name for name in NAMES if any("--json" in word.names for word in find_command(name).words)}
    assert with_json == set(printed_records())


def test_an_audit_that_finds_what_mixes_tokens_too(run, tmp_path):
    (tmp_path / "mixing.py").write_text(
        "import torch\n"
        "class Mixing(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.embed = torch.nn.Embedding(9000, 16)\n"
        "        self.attend = torch.nn.MultiheadAttention(16, 2, batch_first=True)\n"
        "        self.convolve = torch.nn.Conv1d(16, 16, 3, padding=1)\n"
        "    def forward(self, ids):\n"
        "        states = self.embed(ids)\n"
        "        states = states + self.attend(states, states, states)[0]\n"
        "        return states + self.convolve(states.mT).mT\n"
    )
    ran = run("info", "-m", f"{tmp_path}/mixing.py:Mixing", "--audit", "--json")
    assert json.loads(ran.out)["mixers"]
    validate(ran, "info", run)


def test_a_schema_is_indented_in_a_terminal(run, monkeypatch):
    piped = run("schema", "show").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = run("schema", "show").out
    assert piped.count("\n") == 1
    assert shown.startswith('{\n  "$schema"')
    assert json.loads(shown) == json.loads(piped)
