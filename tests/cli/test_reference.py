"""Which command has which option, spellings of heads and numbers, defaults, help and reference pages."""

import inspect
import os
import re
import shlex
from typing import get_args

import pytest
import typer

from attnscope.attention import Head
from attnscope.cli import build, options
from attnscope.cli.commands import NAMES, find_command
from attnscope.cli.options import LayerOptions, parse_head
from attnscope.cli.settings import UserSetting
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, ROLES
from attnscope.text import read_number
from tests.tools.command_reference import MANUAL, README, manual, page, rows

OPTIONS = {
    name: {word.spelling.split()[0].rstrip(","): word for word in rows(name).values()} for name in NAMES
}
TEXT = "The cat sat on the mat."
LOOKING = {"show", "find", "spans", "flow", "stats", "compare", "browse", "export", "info", "check"}
"""The commands that look at a model's attention on a text."""

SOURCES = (
    "-f --line --from --image --inputs --max-tokens --truncate "
    "--generate --temperature --seed --chat --system"
)
MODELS = (
    "-m --tokenizer --device --device-map --dtype --revision --trust-remote-code --allow-pickle --offline"
)
EVERYWHERE = {
    SOURCES: LOOKING,
    MODELS: LOOKING,
    "--kind": LOOKING - {"info"},
    "--layer": LOOKING - {"info"},
    "--json": LOOKING - {"browse"},
    "--csv": {"stats", "compare"},
    "--texts --field --limit": {"stats", "compare", "check"},
    "--strict --checkpoint": {"stats", "check"},
    "--cmap --dpi --size --font": {"show", "find", "spans", "flow", "stats", "compare", "browse", "export"},
    "--plain": {"show", "find", "spans", "flow", "stats", "compare"},
    "--words --hide-special": {"show", "flow", "compare", "browse", "export"},
    "--scale": {"show", "flow", "browse", "export"},
    "-o": {"show", "find", "spans", "flow", "stats", "compare", "browse", "export", "train"},
}


@pytest.mark.parametrize(
    ("option", "names"), [(option, names) for each, names in EVERYWHERE.items() for option in each.split()]
)
def test_shared_options_are_in_every_applicable_command(option, names):
    assert {name for name, options in OPTIONS.items() if option in options} & (LOOKING | {"train"}) >= names


@pytest.mark.parametrize("option", sorted({option for options in OPTIONS.values() for option in options}))
def test_option_takes_the_same_value_in_every_command(option):
    words = [OPTIONS[name][option].spelling for name in LOOKING if option in OPTIONS[name]]
    values = {word.split(", ")[-1].partition(" ")[2] for word in words}
    own = {"--by", "--format"}  # what a command orders or colours by; the formats of its files
    assert len(values) <= 1 or option in own, f"{option} takes {values}"


def test_help_lists_most_used_options_first():
    often = [option for option, word in OPTIONS["show"].items() if word.panel == "Options"]
    assert often == [
        "-f", "--from", "--image", "--repeat-random", "--truncate", "--generate", "--layer", "--head",
        "--token", "--words", "--hide-special", "--json", "-o", "--mark", "--by", "-m",
    ]  # fmt: skip


@pytest.mark.parametrize(("file", "text"), [(README, page()), (MANUAL, manual())], ids=["page", "manual"])
def test_reference_page_and_manual_are_current(file, text):
    assert file.read_text("utf-8") == text, "write it anew: python -m tests.tools.command_reference"


@pytest.mark.parametrize("name", NAMES)
def test_help_all_lists_every_option(run, name):
    printed = " ".join(run(name, "--help-all").out.split())
    for word in rows(name).values():
        assert word.help, f"{name} {word.spelling} does not say what it does"
        assert word.spelling.split()[0].rstrip(",").lower() in printed.lower()
    assert {"--quiet", "--verbose"} <= {*printed.split()}


@pytest.mark.parametrize("name", ["show", "stats", "compare", "flow"])
def test_short_help_ends_with_the_name_of_the_long_one(run, name):
    box = run(name, "--help").out.partition("Options ")[2].partition("╰")[0]
    assert "--help-all: --latex, --size, --title" in box.strip().splitlines()[-1]


def test_command_list_starts_with_most_used(run):
    printed = run("--help").out
    assert run().out == run("--help-all").out == printed
    assert "--help-all every one" in printed
    names = re.findall("^│ ([a-z]+) ", printed, re.M)
    assert names[:5] == ["show", "browse", "stats", "find", "compare"]
    assert printed.index(" More ") > printed.index(" check ")
    assert {*NAMES} <= {*names}


def test_completion_offers_every_measure_and_role():
    assert set(options.measure_names()) == set(MEASURES)
    assert set(options.explained_names()) >= {*MEASURES, *ROLES}


@pytest.mark.parametrize(
    ("command", "option", "begun", "offered"),
    [
        ("stats", "--map", "ind", ["induction"]),
        ("show", "--cmap", "vir", ["viridis"]),
        ("show", "--kind", "", ["encoder", "decoder", "cross", "mixer"]),
    ],
)
def test_completion_offers_matching_values(command, option, begun, offered):
    found = build(command)
    context = found.make_context(command, [], resilient_parsing=True)
    (parameter,) = (each for each in found.params if option in each.opts)
    assert [each.value for each in parameter.shell_complete(context, begun)] == offered


def test_completion_offers_downloaded_hub_models(tmp_path, monkeypatch):
    (tmp_path / "models--someone--a-bert").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert list(options.model_names()) == ["own", "own-causal", "someone/a-bert"]


def test_layer_and_head_may_be_separate_options():
    assert parse_head("3", LayerOptions(layers="5")) == parse_head("L5H3") == Head("L5H3")
    assert parse_head("cross L5H3") == Head("cross L5H3")


@pytest.mark.parametrize(
    ("head", "more", "sentence"),
    [
        ("3", {}, "which layer"),
        ("L5", {}, "'L5' is not a head: write L5H3, 5.3 or 5-3"),
        ("٣", {"layers": "1"}, "is not a head"),
        ("3", {"layers": "0-3"}, "which layer"),
        ("L5H3", {"layers": "4"}, "--head L5H3 names its layer: leave it out"),
        ("cross L5H3", {"kind": "encoder"}, "--head cross L5H3 names its kind: leave it out"),
    ],
)
def test_misspelled_head_error_shows_the_form(head, more, sentence):
    with pytest.raises(typer.BadParameter, match=sentence):
        parse_head(head, LayerOptions(**more))


PLACES = {
    "show TEXT": "--token LONG|--layer LONG|--layer 0-LONG|--head LONG|--head L0HLONG|--head LONG.0|"
    "--head LONG --layer 0|--line LONG|--line MANY|--max-tokens MANY|--generate MANY -m own-causal|"
    "--from-second nan|--dpi nan|--size nan|--temperature 1e999|--temperature nan",
    "logits TEXT": "--target LONG",
    "stats TEXT": "--rows 0-LONG|--where entropy<LONG|--where entropy>nan|--where entropy<1e999|"
    "--where entropy<1_0|--where offset=LONG>0|--sort offset=-LONG|--top MANY",
    "check TEXT": "'L0HLONG.entropy > 1'|'count(entropy > 1) > LONG'",
    "find TEXT": "'LONG -> cat'|'* -> +LONG'|'cat#LONG -> cat'",
    "spans TEXT": "--parts sentence --pair 'LONG -> 1'",
    "compare TEXT": "--head LONG|L0HLONG L0H0",
    "": "--LONG|LONG",
}


@pytest.mark.parametrize("typed", [f"{first} {one}" for first, of in PLACES.items() for one in of.split("|")])
def test_invalid_number_is_refused_in_a_readable_sentence(run, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(typed.replace("LONG", "9" * 5000).replace("MANY", "9" * 25))
    ended = run(*(TEXT if word == "TEXT" else word for word in words))
    assert ended.code == 2
    assert "unexpected" not in ended.err
    assert len(ended.err) < 2000


def test_numbers_are_short_ascii_digits():
    assert read_number("007") == 7
    assert [read_number(text) for text in ("", "-1", "+1", "1_0", "٣", "²", "1.0", "1" * 10)] == [None] * 8
    assert Head("L000000001H3") == Head(1, 3)
    with pytest.raises(SelectionError, match="is not a head"):
        Head("L0H" + "0" * 10_000)


@pytest.fixture
def write(monkeypatch, tmp_path):
    """A function that writes the project's settings and the user's own."""
    (tmp_path / "project" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "below")

    def write(project="", users=""):
        (tmp_path / "project" / "pyproject.toml").write_text(f"[tool.attnscope]\n{project}")
        (tmp_path / "config.toml").write_text(users)
        monkeypatch.setattr("attnscope.cli.settings.users_file", lambda: tmp_path / "config.toml")

    return write


@pytest.mark.parametrize(
    ("settings", "typed"),
    [
        ({"users": 'model = "own-causal"'}, "-m own-causal"),
        ({"users": 'hide_special = true\nscale = "row"'}, "--hide-special --scale row"),
        ({"project": "quiet = true\nmax-tokens = 5"}, "-q --max-tokens 5"),
    ],
)
def test_setting_is_the_default_of_its_option(run, write, settings, typed):
    asked = ("show", TEXT, "--head", "L1H1")
    usual, wanted = run(*asked).out, run(*asked, *typed.split()).out
    write(**settings)
    assert run(*asked).out == wanted != usual


def test_typed_option_overrides_variable_project_and_user(run, write, monkeypatch):
    write(users='model = "no/model"')
    assert run("show", TEXT).code == 2
    write(project='model = "own-causal"', users='model = "no/model"')
    assert run("show", TEXT).out.startswith("own-causal ")
    monkeypatch.setenv("ATTNSCOPE_MODEL", "own")
    assert run("show", TEXT).out.startswith("own ")
    assert run("show", TEXT, "-m", "own-causal").out.startswith("own-causal ")


def test_info_lists_defaults_with_their_origin(run, write, tmp_path, monkeypatch):
    write(project="words = true", users="dpi = 300")
    monkeypatch.setenv("ATTNSCOPE_MODEL", "own-causal")
    monkeypatch.setenv("COLUMNS", "300")
    lines = [line.split() for line in run("info", "--defaults").out.splitlines()]
    assert ["--model", "own-causal", "ATTNSCOPE_MODEL"] in lines
    assert ["--words", "True", str(tmp_path / "project" / "pyproject.toml")] in lines
    assert ["--dpi", "300", str(tmp_path / "config.toml")] in lines


def test_show_from_file_ignores_model_settings(run, write, tmp_path, monkeypatch):
    assert run("show", TEXT, "-o", tmp_path / "a.npz").code == 0
    write(users='dtype = "bfloat16"')
    monkeypatch.setenv("ATTNSCOPE_MODEL", "no/model")
    assert run("show", "--from", tmp_path / "a.npz", "--head", "L0H0").code == 0
    assert run("info", "own").code == 0


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ('modle = "own"', "sets modle: no command has an option --modle"),
        ("dpi = 5", "--dpi must be 10 or more (set in "),
        ('scale = "max"', "--scale: 'max' is not one of 'auto', 'fixed', 'row', 'head' (set in "),
        ('words = "yes"', "sets words to 'yes': write true or false"),
        ("model = true", "sets model to True: write a text or a number"),
        ("model = [", "cannot read "),
    ],
)
def test_invalid_project_setting_error_names_its_file(run, write, tmp_path, setting, sentence):
    write(project=setting)
    ran = run("show", TEXT).refuses(sentence)
    assert ran.err.count("\n") == 1
    assert str(tmp_path / "project" / "pyproject.toml") in ran.err


CODE = "from pathlib import Path\nPath('ran').touch()\nimport torch\nM = torch.nn.Linear"
"""A module that leaves a file where it ran."""


SET = [(where, name) for where in ("project", "users") for name in ("model", "with-model", "tokenizer")]


@pytest.mark.parametrize(("where", "name"), [*SET, ("variable", "model")])
@pytest.mark.parametrize("code", ["{folder}/evil.py:M", "evil:M", "timeit:main"])
def test_no_setting_runs_code(run, write, tmp_path, monkeypatch, where, name, code):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(CODE)
    named = code.format(folder=tmp_path)
    write(**{} if where == "variable" else {where: f'{name} = "{named}"'})
    if where == "variable":
        monkeypatch.setenv("ATTNSCOPE_MODEL", named)
    ran = run("compare", TEXT)
    assert ran.code == 0
    assert f"left out --{name} of " in ran.err
    assert not list(tmp_path.rglob("ran"))


def test_forbidden_project_settings_are_skipped_with_a_note(run, write, tmp_path):
    write(project='out = "x.svg"\ntrust-remote-code = true\nallow_pickle = true\nsave_trace = "x.trace"')
    ran = run("show", TEXT)
    file = tmp_path / "project" / "pyproject.toml"
    left = [f"--{name} of {file}" for name in ("out", "trust-remote-code", "allow-pickle", "save-trace")]
    assert ran.err == f"left out {', '.join(left)}: what runs code, loads or writes is typed\n"
    assert "own" in ran.out
    assert not list(tmp_path.rglob("x.*"))
    assert not run("show", TEXT, "-q").err


def test_user_settings_may_write_but_not_trust(run, write, tmp_path):
    write(project='out = "y.svg"', users='out = "x.svg"\ntrust-remote-code = true')
    assert "left out --trust-remote-code of " in run("show", TEXT).err
    assert [each.name for each in tmp_path.rglob("*.svg")] == ["x.svg"]
    rows = run("info", "--defaults").out.splitlines()
    assert sum("left out: " in row for row in rows) == 2


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="a system without owners of files")
@pytest.mark.parametrize("change", ["file", "folder", "group", "owner", "linked"])
def test_settings_writable_by_others_are_ignored(run, write, tmp_path, monkeypatch, change):
    write(project="max-tokens = 5", users="words = true")
    folder = tmp_path / "project"
    file = folder / "pyproject.toml"
    assert "cut: the first 5" in run("show", TEXT).out
    if change == "owner" and os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
    elif change == "owner":
        os.chown(file, 4321, -1)
    elif change == "group":
        monkeypatch.setattr(os, "getegid", lambda: 4321)
        file.chmod(0o664)
    elif change == "linked":
        file.rename(tmp_path / "theirs.toml").chmod(0o646)
        file.symlink_to(tmp_path / "theirs.toml")
    else:
        (file if change == "file" else folder).chmod(0o777)
    ran = run("show", TEXT)
    assert "cut: the first 5" not in ran.out
    assert "left out everything of " in ran.err
    assert f"{file}, which others own or can write" in ran.err


HARMLESS = {
    "annotate", "cmap", "device", "dpi", "dtype", "field", "font", "graphics", "hide_special", "kind",
    "large", "layers", "limit", "max_tokens", "method", "model", "no_caption", "plain", "quiet",
    "scale", "size", "sort", "top", "truncate", "verbose", "weighting", "words",
}  # fmt: skip
"""What anyone's project may set: how much is read, and how it looks; a model, as a folder or a hub id."""

ACTS = r"\b(save (?!a picture)|files?\b|folder|code|pickle|trust|network|resume|cache|download|checkpoint)"


def test_project_settings_exclude_paths_code_and_trust():
    found = set()
    for name in NAMES:
        declared = inspect.signature(find_command(name)).parameters
        for each in build(name).params:
            if each.name not in build(name).callback.settable:
                continue
            kind = get_args(declared[each.name].annotation)[0]
            assert "Path" not in str(kind), f"{name} {each.opts}"
            acts = re.search(ACTS, each.help, re.IGNORECASE)
            assert not acts or each.name == "model", f"{name} {each.opts}: {acts}"
            found.add(each.name)
    assert found == HARMLESS


def test_options_naming_code_are_never_settings():
    for name in NAMES:
        for each in build(name).params:
            if re.search("FILE.py|Python code", each.help):
                setting = UserSetting(each.opts[0], "evil.py:M", "config.toml", users=True)
                assert not setting.is_taken(True)


def test_settings_of_another_project_are_not_read(run, write, tmp_path, monkeypatch):
    write(project="max-tokens = 5")
    monkeypatch.chdir(tmp_path)
    assert "cut: the first 5" not in run("show", TEXT).out
