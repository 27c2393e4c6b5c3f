"""Folders that demand unlimited time or memory lead to one sentence; tests use small limits."""

import json
import os
import shutil
from dataclasses import is_dataclass

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnscope.errors import AttnscopeError, ModelError
from attnscope.models import load, untrusted_folder
from attnscope.network import PRETRAINED
from tests.models.folders import changed

TEXT = "The cat sat on the mat because it was tired, and the dog was not tired at all."
NESTED = "[" * 100_000 + "]" * 100_000
TOO_MUCH = "out of memory: "
CHATS = {
    "for ever": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "takes longer than",
    ),
    "ten billion letters": ("{{ 'a' * 10**10 }}", TOO_MUCH),
    "a text that doubles": (
        "{% set n = namespace(x='aaaaaaaa') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        f"takes longer than|{TOO_MUCH}",
    ),
    "twenty thousand brackets": ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "refuses this"),
    "a macro that calls itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion depth"),
    "a module": ("{{ cycler.__init__.__globals__.os.system('true') }}", "is unsafe"),
    "a file": ("{% include '/etc/passwd' %}", "refuses this"),
    "what is not there": ("{{ nothing.at.all }}", "'nothing' is undefined"),
    "codes for the terminal": ("{{ raise_exception('\x1b[31mred\x07\u202e') }}", "␛[31mred␇‹202E›"),
    "templates with names": ([{"name": "default", "template": "{{ 'a' * 10**10 }}"}], TOO_MUCH),
    "names without a default": ([{"name": "rag", "template": "a"}] * 2, "no default specified"),
    "a number": (7, "refuses this"),
}
CONFIGS = {
    "layers": {"n_layer": 2**31},
    "labels": {"num_labels": 10**8},
    "positions": {"n_positions": 10**9},
    "words": {"vocab_size": 10**30},
    "four depths": {"model_type": "swinv2", "depths": [10**7] * 4, "num_heads": [1] * 4},
    "layers of an inner config": {"model_type": "llava", "text_config": {"num_hidden_layers": 10**9}},
    "repeats": {"model_type": "funnel", "block_sizes": [1, 1], "block_repeats": [10**8, 1]},
    "hashes": {"model_type": "reformer", "num_hashes": 10**6},
    "factors": {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 300_000}},
    "repeats of many blocks": {"model_type": "funnel", "block_sizes": [9] * 9999, "block_repeats": [9999]},
    "kinds of attention": {"model_type": "gpt_neo", "attention_types": [[["global", "local"], 10**9]]},
    "an inner width": {"n_inner": 10**9},
}


def grow(path):
    """A file of a gigabyte that takes no place on the disk."""
    path.write_bytes(b"")
    os.truncate(path, 1 << 30)


ODD = {
    "endless": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "large": (grow, "at most 8.39 MB are read"),
    "nested": (lambda path: path.write_text(NESTED), "is not JSON"),
}
pytestmark = pytest.mark.usefixtures("little_memory")


@pytest.fixture(scope="module", autouse=True)
def honest(tmp_path_factory):
    """An honest folder is read once: what that imports takes time and memory."""
    place = tmp_path_factory.mktemp("made") / "model"
    load(changed(place, "tokenizer_config.json", chat_template="{{ messages }}")).prepare_chat(TEXT)


def require_sentence(place, said, read="prepare"):
    """A folder ends in its sentence; only one that may take all time is given little of it."""
    with pytest.MonkeyPatch.context() as limits:
        if "takes longer than" in said:
            limits.setenv("ATTNSCOPE_DEADLINE", "0.5")
        with pytest.raises(AttnscopeError) as caught:
            getattr(load(str(place)), read)(TEXT)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert any(part in sentence for part in said.split("|")), sentence


@pytest.mark.sweep
# time or memory may end in a callback of the garbage collector that the tests' own libraries have
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", CHATS)
def test_hostile_chat_template_is_limited_in_time_and_memory(name, tmp_path):
    template, said = CHATS[name]
    made = changed(tmp_path / "model", "tokenizer_config.json", chat_template=template)
    require_sentence(made, said, "prepare_chat")


@pytest.mark.parametrize("file", ["chat_template.jinja", "additional_chat_templates/default.jinja"])
def test_chat_template_file_is_limited_in_memory(file, tmp_path):
    path = changed(tmp_path / "model") / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("{{ 'a' * 10**10 }}")
    require_sentence(tmp_path / "model", TOO_MUCH, "prepare_chat")


@pytest.mark.parametrize("name", CONFIGS)
def test_config_beyond_memory_is_refused_before_building(name, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", None)
    said = "asks for more than the memory|asks for more than any model has"
    require_sentence(changed(tmp_path / "model", **CONFIGS[name]), said)


MANY = {"model_type": "gpt_neo", "attention_types": [[["global", "local"], 10**9]], "num_layers": 2}


@pytest.mark.parametrize("changes", [MANY, {"n_inner": 10**9}], ids=["attention_types", "inner width"])
def test_config_larger_than_its_weights_is_refused(changes, tmp_path, monkeypatch):
    for limit in ("MOST_COUNTED", "MOST_LOOPS"):
        monkeypatch.setattr(untrusted_folder, limit, 10**12)
    require_sentence(changed(tmp_path / "model", **changes), f"takes longer than|{TOO_MUCH}")


@pytest.mark.nightly
def test_library_default_configs_pass_the_size_limits():
    for kind in CONFIG_MAPPING.values():
        try:
            settings = json.loads(kind().to_json_string(use_diff=False))
        except Exception:  # some have no defaults
            continue
        untrusted_folder.require_buildable(kind.__name__, settings)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"initializer_range": "wide"},
            "field 'initializer_range': TypeError: Field 'initializer_range' expected float",
        ),
        ({"architectures": [3]}, "the architectures of its config.json are no names"),
    ],
)
def test_config_field_of_wrong_type_is_refused(changes, said, tmp_path):
    if "initializer_range" in changes and not is_dataclass(transformers.GPT2Config):
        pytest.skip("this transformers takes fields of every type")
    require_sentence(changed(tmp_path / "model", **changes), said)


ADDED = [{"id": 0, "content": "a", "\x1b[2J": 1}]


@pytest.mark.parametrize(
    ("file", "field"), [("tokenizer.json", "added_tokens"), ("special_tokens_map.json", "pad_token")]
)
def test_field_name_with_control_codes_is_refused(file, field, tmp_path, capfd):
    place = changed(tmp_path / "model", file, **{field: ADDED if field == "added_tokens" else ADDED[0]})
    capfd.readouterr()
    require_sentence(place, f"the {file} of {place} has a field whose name is no text: '{field}.\\x1b[2J'")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_config_that_is_no_regular_json_file_is_refused(name, own, tmp_path):
    place = tmp_path / "model"
    shutil.copytree(PRETRAINED / "own", place) if own else changed(place)
    (place / "config.json").unlink()
    put, said = ODD[name]
    put(place / "config.json")
    require_sentence(place, said)


@pytest.mark.parametrize(
    ("own", "put", "said"),
    [(False, lambda path: path.write_text(NESTED), "cannot be loaded"), (True, os.mkfifo, "a named pipe")],
)
def test_tokenizer_file_invalid_or_deeply_nested_is_refused(own, put, said, tmp_path):
    place = tmp_path / "model"
    shutil.copytree(PRETRAINED / "own", place) if own else changed(place)
    (place / "tokenizer.json").unlink()
    put(place / "tokenizer.json")
    require_sentence(place, said)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "it runs out of memory: "),
        (RuntimeError("DefaultCPUAllocator: not enough memory"), "it runs out of memory: "),
        (type("PanicException", (BaseException,), {})(), "it breaks the library that runs it"),
    ],
)
def test_errors_of_foreign_code_are_one_sentence(error, said):
    with pytest.raises(ModelError, match=said), untrusted_folder.foreign_work("it"):
        raise error
