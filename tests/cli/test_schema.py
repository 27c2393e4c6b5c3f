"""Every answer in JSON is what its schema says, and every field is described."""

import json
import shlex

import jsonschema
import pytest

from attnscope.cli.commands import NAMES, find_command
from attnscope.questions.answer import VERSION, printed_records

WORDS = {"TEXT": "The cat saw it.", "OTHER": "The dog saw it."}
ASKED = {
    "show TEXT": "|--head L1H1 --words|--token cat|--weigh norm",
    "show TEXT -m ./gpt2 --loss": "|--head L0H1",
    "show TEXT 'It slept.' -m ./t5": "|--head 'cross L0H1'|--token 2",
    "show --image a.png -m ./vit": "--token 1,1",
    "stats": "TEXT|TEXT --sort coverage90 --layer 1|TEXT --by-position previous|TEXT --faithful --layer 0|"
    "--texts texts.txt",
    "ablate TEXT": "|--head L2H1|--importance",
    "compare TEXT": "|--head 1|L1H1 L2H1|--with-text OTHER|--with-text OTHER --head L1H1|--with-model own",
    "compare": "L1H0 TEXT --composition -m own-causal|--texts texts.txt",
    "find 'it -> cat' TEXT": "",
    "spans TEXT": "|--pair '1 -> 1'|-m own-causal --truncate --max-tokens 4 --generate 3 --written",
    "flow TEXT": "|--method relevance|--faithful",
    "cut TEXT 'it -> cat'": "|--head L0H1",
    "patch TEXT --with-text OTHER": "|--fast",
    "circuit pairs.tsv -m own-causal": "",
    "logits TEXT -m ./gpt2": "--by head|--by layer",
    "cachecost -m own-causal --recent 1 --sink 1 --texts texts.txt": "",
    "info": "own TEXT|own TEXT --audit|./gpt2 --copying|./t5",
    "align tone.wav TEXT -m ./whisper": "|--rank",
    "export TEXT --format png,npz --layers 0 --heads 1 -o made/described --force": "",
}


SCHEMAS = {}
"""By command: what holds of its answers, printed and checked once."""


def schema_of(command, run):
    if command not in SCHEMAS:
        SCHEMAS[command] = json.loads(run("schema", command).out)
        jsonschema.Draft202012Validator.check_schema(SCHEMAS[command])
    return SCHEMAS[command]


def validate(command, run, *words):
    ran = run(command, *words, "--json")
    assert ran.code in (0, 1), ran.err
    schema, answer = schema_of(command, run), json.loads(ran.out)
    jsonschema.Draft202012Validator(schema).validate(answer)
    assert next(iter(answer.items())) == ("schema", schema["$id"])
    return answer


@pytest.mark.parametrize("asked", [f"{first} {one}" for first, of in ASKED.items() for one in of.split("|")])
def test_an_answer_is_what_its_schema_says(run, place, monkeypatch, asked):
    monkeypatch.chdir(place)
    command, *words = (WORDS.get(word, word) for word in shlex.split(asked))
    validate(command, run, *words)


@pytest.mark.parametrize("text", [WORDS["TEXT"], "It was a mat."])
def test_claims_and_what_has_changed_too(run, tmp_path, text):
    run("check", "--text", WORDS["TEXT"], "--save", tmp_path / "before.json")
    validate("check", run, "L0H7.next > 0.9", "--text", text, "--against", tmp_path / "before.json")


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
    assert validate("info", run, "-m", f"{tmp_path}/mixing.py:Mixing", "--audit")["mixers"]


def test_a_schema_is_indented_in_a_terminal(run, monkeypatch):
    piped = run("schema", "show").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = run("schema", "show").out
    assert piped.count("\n") == 1
    assert shown.startswith('{\n  "$schema"')
    assert json.loads(shown) == json.loads(piped)
