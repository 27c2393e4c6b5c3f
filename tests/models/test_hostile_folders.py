"""Folders that ask for all time and all memory: a sentence in ten seconds and a gigabyte."""

import json
import os
import shutil

import pytest

from attnscope.network.folder import PRETRAINED
from tests.models.hostile import MEMORY, folder, verdicts

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]

TEXT = "The cat sat on the mat because it was tired, and the dog was not tired at all."
DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
NESTED = "[" * 100_000 + "]" * 100_000


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


TOKENIZERS = {  # what is changed in tokenizer.json, and what is said of it
    "a text that doubles 34 times": (
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 34}},
        "asks for more than",
    ),
    "spellings that double 34 times": (
        {"decoder": {"type": "Sequence", "decoders": [DOUBLE] * 34}},
        "asks for more than",
    ),
    "fifty million letters before a text": (
        {"normalizer": {"type": "Prepend", "prepend": "a" * 50_000_000}},
        "asks for more than|takes longer than",
    ),
    "a pattern that tries every way": (
        {"pre_tokenizer": split(r"^(([a-zA-Z .,])+)+$X|^((\w| )+)+!$")},
        "breaks the library|takes longer than",
    ),
}
CHATS = {
    "for ever": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "takes longer than",
    ),
    "ten billion letters": ("{{ 'a' * 10**10 }}", "asks for more than"),
    "a text that doubles": (
        "{% set n = namespace(x='aaaaaaaa') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "asks for more than",
    ),
    "twenty thousand brackets": ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "refuses this"),
    "a macro that calls itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion depth"),
    "a padded letter": ("{{ 'a'.ljust(10**10) }}", "asks for more than"),
    "a million parts": ("{{ messages | slice(10**9) | list }}", "takes longer than|asks for more than"),
    "what is behind a class": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "is unsafe"),
    "a module": ("{{ cycler.__init__.__globals__.os.system('true') }}", "is unsafe"),
    "a file": ("{% include '/etc/passwd' %}", "refuses this"),
    "what is not there": ("{{ nothing.at.all }}", "'nothing' is undefined"),
    "codes for the terminal": ("{{ raise_exception('\x1b[31mred\x07\u202e') }}", "␛[31mred␇‹202E›"),
    "templates with names": ([{"name": "default", "template": "{{ 'a' * 10**10 }}"}], "asks for more than"),
    "names without a default": ([{"name": "rag", "template": "a"}] * 2, "no default specified"),
    "a number": (7, "refuses this"),
}
CONFIGS = {
    "num_labels": ({"num_labels": 10**8}, "asks for more than"),
    "depths": ({"model_type": "swin", "depths": [10**7], "num_heads": [1]}, "takes longer|asks for more"),
    "four depths": (
        {"model_type": "swinv2", "depths": [10**7] * 4, "num_heads": [1] * 4},
        "takes longer|asks for more",
    ),
    "attention_types": (
        {
            "model_type": "gpt_neo",
            "attention_types": [[["global", "local"], 10**9]],
            "num_layers": 2 * 10**9,
        },
        "asks for more than",
    ),
    "layers": ({"n_layer": 10**9}, "asks for more than"),
    "positions": ({"n_positions": 10**9}, "cannot be loaded|asks for more than"),
}


def retokenized(place, change):
    """A folder whose tokenizer.json went through ``change``."""
    made = folder(place)
    path = made / "tokenizer.json"
    path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))), "utf-8")
    return made


def long_token(settings):
    vocabulary = settings["model"]["vocab"]
    last = list(vocabulary)[-1]
    vocabulary["x" * 1_000_000] = vocabulary.pop(last)
    settings["model"]["merges"] = [pair for pair in settings["model"]["merges"] if "".join(pair) != last]
    added = dict(settings["added_tokens"][0], id=len(vocabulary), content="T" * 1_000_000)
    return settings | {"added_tokens": [*settings["added_tokens"], added]}


def odd_files(place):
    """A config.json that is none, by what is said of it."""
    made = {}
    for name in ("pipe", "endless", "large", "nested", "objects"):
        path = folder(place / name) / "config.json"
        path.unlink()
        made[name] = path
    os.mkfifo(made["pipe"])
    made["endless"].symlink_to("/dev/zero")
    made["large"].write_bytes(b"")
    os.truncate(made["large"], 1 << 30)
    made["nested"].write_text(NESTED)
    made["objects"].write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    said = {"pipe": "no regular file", "endless": "no regular file", "large": "at most 8.39 MB are read"}
    return [(path.parent, said.get(name, "is no JSON")) for name, path in made.items()]


def own_folders(place):
    """The own format: its config, and its tokenizer."""
    made = []
    for name in ("pipe", "endless", "nested", "bomb", "piped tokenizer"):
        shutil.copytree(PRETRAINED / "own", place / f"own {name}")
        made.append(place / f"own {name}")
    pipe, endless, nested, bomb, piped = made
    for path in (pipe / "config.json", endless / "config.json", piped / "tokenizer.json"):
        path.unlink()
    os.mkfifo(pipe / "config.json")
    os.mkfifo(piped / "tokenizer.json")
    (endless / "config.json").symlink_to("/dev/zero")
    (nested / "config.json").write_text(NESTED)
    settings = json.loads((bomb / "tokenizer.json").read_text("utf-8"))
    settings["normalizer"] = {"type": "Sequence", "normalizers": [DOUBLE] * 34}
    (bomb / "tokenizer.json").write_text(json.dumps(settings), "utf-8")
    said = ("no regular file", "no regular file", "is no JSON", "asks for more than", "a named pipe")
    return list(zip(made, said, strict=True))


def require_sentences(cases, **options):
    """Every folder ends in its sentence, within the limits that ``verdicts`` sets and this one."""
    for outcome, (place, said) in zip(
        verdicts([place for place, _ in cases], TEXT, **options), cases, strict=True
    ):
        assert outcome["ended"] == 0, place.name
        assert outcome["memory"] < MEMORY, place.name
        assert outcome["tried"] == [], place.name
        sentence = outcome["sentence"] or ""
        assert sentence.isprintable()
        assert any(part in sentence for part in said.split("|")), f"{place.name}: {sentence}"


def test_a_tokenizer_takes_neither_all_time_nor_all_memory(tmp_path):
    require_sentences(
        [
            (retokenized(tmp_path / name, lambda settings, c=change: settings | c), said)
            for name, (change, said) in TOKENIZERS.items()
        ]
    )


def test_a_tokenizer_nested_deeply_is_refused(tmp_path):
    made = folder(tmp_path / "nested")
    (made / "tokenizer.json").write_text(NESTED)
    require_sentences([(made, "cannot be loaded")])


def test_tokens_of_a_million_characters_are_tokens_like_others(tmp_path):
    (outcome,) = verdicts([retokenized(tmp_path / "long", long_token)], TEXT)
    assert outcome["sentence"] is None
    assert outcome["ended"] == 0
    assert outcome["memory"] < MEMORY


def test_a_chat_template_takes_neither_all_time_nor_all_memory(tmp_path):
    cases = []
    for name, (template, said) in CHATS.items():
        cases.append((folder(tmp_path / name, "tokenizer_config.json", chat_template=template), said))
    for file in ("chat_template.jinja", "additional_chat_templates/default.jinja"):
        place = folder(tmp_path / file.replace("/", " "))
        (place / file).parent.mkdir(exist_ok=True)
        (place / file).write_text("{{ 'a' * 10**10 }}")
        cases.append((place, "asks for more than"))
    require_sentences(cases, chat=True)


def test_a_config_asks_for_no_more_than_the_weights_fill(tmp_path):
    require_sentences(
        [(folder(tmp_path / name, **changes), said) for name, (changes, said) in CONFIGS.items()]
    )


def test_a_config_that_is_no_file_or_no_settings_is_refused(tmp_path):
    require_sentences(odd_files(tmp_path))


def test_a_folder_in_the_own_format_is_trusted_no_more(tmp_path):
    require_sentences(own_folders(tmp_path))
