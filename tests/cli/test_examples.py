"""Every example of the help, README.md and the tour runs as written, in a folder like a clone.

Models of the hub are tiny ones of the same sort, in folders of their names. Training is shortened.
"""

import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from functools import partial
from glob import glob
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

from attnscope.cli import build
from attnscope.cli.command import MOST_USED
from attnscope.cli.commands import NAMES
from attnscope.cli.commands.skill import SKILL
from tests.cli.run import ROOT
from tests.models import folders, images, speech
from tests.tools.command_reference import examples_of
from tests.tools.readme import BLOCK, DOCUMENTS, FENCED, README

OTHERS = "--help --help-all --version --install-completion --nproc-per-node --array --gpus --requeue"
OTHERS += " --guide --guidance --hook-stage"
"""Options that no command of ours has: of all programs, torchrun, Slurm, pre-commit, and an older release."""

MOST, WIDEST, LONGEST = 6, 78, 100  # examples of a command; characters of one in its help, and elsewhere
LINES = 60  # of a help

PEOPLE = ["When Mary and John met, Henry gave a pen to Anna. James and Alice met, for a refund."] * 9
HUB = {
    "openai-community/gpt2": folders.gpt2,
    "EleutherAI/pythia-14m": folders.gpt2,
    "Qwen/Qwen2.5-7B": folders.gpt2,
    "Qwen/Qwen3-0.6B": folders.chat,
    "tiiuae/Falcon-H1-0.5B-Base": folders.hybrid,
    "google-t5/t5-small": folders.t5,
    "google-bert/bert-base-uncased": lambda path: path.symlink_to(folders.minilm()),
    "facebook/dinov2-base": partial(images.vision, name="dinov2"),
    "openai/clip-vit-base-patch32": partial(images.vision, name="clip"),
    "openai/whisper-tiny": speech.whisper,
    "facebook/wav2vec2-base-960h": speech.ctc,
}
"""A tiny model in place of each one of the hub."""

WAITING = {
    "browse": ("textual", "attnscope.browser.Browser"),
    "mcp": ("mcp", "mcp.server.mcpserver.MCPServer"),
}
"""What does not end by itself: the package that it needs, and what runs."""

SMALL = ["--num-layers", "1", "--num-heads", "2", "--width", "16", "--vocabulary", "300"]
CORPORA, TEXTS = ("sentences.txt", "words.jsonl", "languages.txt"), 5  # files of texts, and how many are read
QUICK = ["--steps", "2", "--batch", "2", "--length", "32"]
"""Of what is trained in minutes: another shape, unless it is that of an encoder, and two steps."""


def typed_in(document: Path) -> list[list[str]]:
    """The commands without output in a document, by section: what begins with a phrase in bold."""
    sections = re.split(r"^(?=\*\*|## )", document.read_text("utf-8"), flags=re.M)
    return [lines for each in sections if (lines := [one for one in lines_of(each) if one[:4] != "pip "])]


def lines_of(text: str) -> list[str]:
    """The lines of the blocks without a language; those that install are typed by the build."""
    return [line for language, block in FENCED.findall(text) if not language for line in block.splitlines()]


def in_a_table(document: Path) -> list[str]:
    """The commands in the tables of a document, with something in place of what is left open."""
    rows = "\n".join(line for line in document.read_text("utf-8").splitlines() if line.startswith("|"))
    codes = [code.split(" ") for code in re.findall("`([^`]+)`", rows)]
    codes = [code if code[0] == "attnscope" else ["attnscope", *code] for code in codes if code[1:]]
    return [" ".join(FILLED.get(word, word) for word in code) for code in codes if code[1] in NAMES]


FILLED = {
    "TEXT": '"The cat sat on the mat because it was tired."',
    "TEXT2": '"The dog sat on the mat because it was tired."',
    "FILE.txt": "sample_inputs/sentences.txt",
    "LOG.jsonl": "sample_inputs/log.jsonl",
    "N": "1",
    "MODEL": "own",
    "CAUSAL": "own-causal",
    "CHAT": "Qwen/Qwen3-0.6B",
    "COMMAND": "stats",
}
"""What SKILL.md leaves open."""

SECTIONS = (
    {f"attnscope {name} --help": examples_of(name) for name in NAMES}
    | {
        f"{document.name} {number}": lines
        for document in DOCUMENTS
        for number, lines in enumerate(typed_in(document), 1)
    }
    | {f"{document.name} table": in_a_table(document) for document in (README, SKILL)}
)
"""The examples that are typed one after another, by where they stand."""


def needs_shell(line: str) -> bool:
    """Whether a line is more than one command of ours."""
    return not line.startswith("attnscope ") or bool({"|", ">"} & {*shlex.split(line)})


def marked(place: str):
    """A case: one that starts processes says so."""
    marks = [pytest.mark.subprocess] if any(map(needs_shell, SECTIONS[place])) else []
    return pytest.param(place, marks=marks, id=place)


def words_of(line: str) -> list[str]:
    """What a shell makes of a command, with training shortened."""
    words = []
    for typed in shlex.split(line, posix=False):
        word = shlex.split(typed)[0]
        words += (word == typed and sorted(glob(word))) or [word]  # a quoted pattern stays one
    if words[:2] != ["attnscope", "train"]:
        return words
    for name in {"--minutes", "--steps"} & {*words}:
        at = words.index(name)
        del words[at : at + 2]
    return [*words, *QUICK, *([] if "--start-from" in words else SMALL)]


def type_here(line: str, run, monkeypatch) -> None:
    """Run a line in this process: a command of ours, maybe behind ``cat FILE |`` or before ``> FILE``.

    A program in Python runs here, too, and one of two processes alone (``test_processes.py`` starts both).
    """
    *before, words = (list(part) for pipe, part in groupby(words_of(line), "|".__eq__) if not pipe)
    if words[0] == "python":
        monkeypatch.setattr("sys.argv", words[1:])
        return runpy.run_path(words[1], run_name="__main__")
    for cat, file in before:
        assert cat == "cat"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(file).read_bytes())))
    words, written = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, os.devnull)
    ran = run(*words[words.index("attnscope") + 1 :])
    assert ran.code == 0, (line, ran.err)
    Path(written).write_text(ran.out)


@pytest.fixture(scope="session")
def copied(tmp_path_factory):
    """A folder like a clone, with short corpora and short training, and an ``attnscope`` for shells."""
    place = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "sample_inputs", place / "sample_inputs")
    script = place / "sample_inputs" / "tutorial_models.py"
    script.write_text(re.sub(r"steps=\d+", "steps=2", script.read_text()))
    for name in CORPORA:
        corpus = place / "sample_inputs" / name
        corpus.write_text("".join(corpus.read_text("utf-8").splitlines(keepends=True)[:TEXTS]), "utf-8")
    (place / "attnscope").symlink_to(ROOT / "attnscope")
    program = place / ".bin" / "attnscope"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attnscope "$@"\n')
    program.chmod(0o755)
    (place / ".cache").mkdir()
    for name in HUB:
        (place / name).parent.mkdir(exist_ok=True)
    return place


@pytest.fixture
def clone(copied, monkeypatch):
    """That folder; what a test writes there is removed again, but for models and passes."""
    found = (copied / ".bin", Path(sys.executable).parent, os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, found)))
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(copied / ".cache"))
    monkeypatch.setattr(folders, "LINES", [*folders.LINES, *PEOPLE])  # whose words are single tokens
    monkeypatch.chdir(copied)
    before = {*copied.iterdir(), *(copied / "sample_inputs").iterdir()}
    yield copied
    for path in {*copied.iterdir(), *(copied / "sample_inputs").iterdir()} - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def unattended(monkeypatch):
    """What waits for keys or for an agent begins and ends; the list says what has begun."""
    begun = []
    monkeypatch.setattr(import_module("attnscope.cli.commands.browse"), "has_terminal", lambda: True)
    for package, kind in WAITING.values():
        if find_spec(package) is not None:
            monkeypatch.setattr(f"{kind}.run", lambda self: begun.append(type(self).__name__))
    return begun


@pytest.mark.slow
@pytest.mark.parametrize("place", [*map(marked, SECTIONS)])
def test_every_documented_example_runs(run, clone, unattended, monkeypatch, request, place):
    waiting = [word for line in SECTIONS[place] for word in WAITING if f"attnscope {word} " in line]
    for word in waiting:
        pytest.importorskip(WAITING[word][0])
    for line in SECTIONS[place]:
        for name in HUB.keys() & {*shlex.split(line)}:
            if not (path := clone / name).exists():
                HUB[name](path)
        if needs_shell(line) and request.config.getoption("whole"):
            ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
            assert ran.returncode == 0, (line, ran.stderr)
        else:
            type_here(line, run, monkeypatch)
    assert unattended == [WAITING[word][1].rpartition(".")[2] for word in waiting]


@pytest.mark.parametrize("name", NAMES)
def test_command_help_is_one_page_with_whole_examples(run, name):
    printed = run(name, "--help").out
    examples = examples_of(name)
    assert printed.count("\n") <= LINES
    assert max(map(len, printed.splitlines())) <= 80
    assert 1 <= len(examples) <= MOST
    assert max(map(len, examples)) <= WIDEST
    assert {f" {line}" for line in examples} <= {line.rstrip() for line in printed.splitlines()}
    assert any(f"attnscope {name}" in line for line in examples)


def test_main_help_is_one_page(run):
    assert run("--help").out.count("\n") <= LINES


@pytest.mark.parametrize("name", NAMES)
def test_short_help_lists_options_of_its_examples(name):
    for line in examples_of(name):
        words = shlex.split(line)
        command = build(words[words.index("attnscope") + 1])
        listed = {
            option for each in command.params for option in each.opts if each.rich_help_panel == MOST_USED
        }
        used = {word for word in words if re.match("--?[a-z]", word)}
        assert used <= listed, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_examples_are_single_short_lines(document):
    text = document.read_text("utf-8")
    lines = [*lines_of(text), *(found[1] for found in BLOCK.finditer(text))]
    known = ("attnscope ", "pip install ", "git clone ", "python ", "torchrun ", "cat ")
    assert [line for line in lines if len(line) > LONGEST or not line.startswith(known)] == []


OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
ROOMS = [README, *(ROOT / "attnscope").rglob("*.md"), *(ROOT / "sample_inputs").glob("*.md")]


@pytest.mark.parametrize("document", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_options_exist(document):
    if document.name == "CHANGELOG.md":
        pytest.skip("it says what was")
    text, others = document.read_text("utf-8"), {*OTHERS.split()}
    known = {name: {option for each in build(name).params for option in each.opts} for name in NAMES}
    assert set(OPTION.findall(text)) <= set().union(others, *known.values())
    for code in re.findall("`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
        name, *_ = code.removeprefix("attnscope ").split() or [""]
        assert {*OPTION.findall(code)} <= known.get(name, {*OPTION.findall(code)}) | others, code
