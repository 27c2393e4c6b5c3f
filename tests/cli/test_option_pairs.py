"""An accepted option has an effect on standard output, a file or the exit code; otherwise it is refused.

Every option of every command is typed alone and with each other one. An option that is accepted beside
another must change the result. By default, the pairs with an output, a format or a mode are typed; with
``--whole``, all.
"""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from pkgutil import iter_modules

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from attnscope import questions
from attnscope.cli import build
from attnscope.models import load
from attnscope.models.trace_recording import record_trace
from attnscope.render import image
from attnscope.storage.files import hash_file
from attnscope.storage.trace import read_trace, write_trace
from tests.models import folders

TEXT = "The unbelievable cat sat\nand it slept."
SHORT = "The unbelievable cat sat."
BASES = {
    "show": [TEXT],
    "stats": [SHORT],
    "find": ["it -> cat", TEXT],
    "compare": [TEXT],
    "flow": [SHORT],
    "spans": ["A cat sat. It slept there."],
    "atlas": ["--texts", "texts.txt", "-o", "folder"],
    "rule": ["L0H7", "--texts", "texts.txt"],
    "examples": ["L1H1", "--texts", "texts.txt"],
    "export": [TEXT, "-o", "folder", "--layer", "0", "--head", "0"],
    "info": ["own"],
    "check": ["L0H0.entropy > 0", TEXT],
    "logits": [TEXT, "-m", "own-causal"],
    "ablate": [TEXT, "-m", "./gpt2"],
    "cut": ["it -> cat", TEXT, "-m", "./gpt2"],
    "patch": ["The cat sat", "--with-text", "The dog sat", "-m", "own-causal"],
    "why": ["it -> cat", TEXT, "--head", "L2H1"],
    "circuit": ["pairs.tsv", "-m", "own-causal"],
    "cachecost": ["--texts", "texts.txt", "-m", "own-causal", "--sink", "1", "--recent", "2"],
    "loss": ["texts.txt", "-m", "./gpt2"],
    "track": ["one", "two", "--texts", "texts.txt"],
    "align": ["tone.wav", "Some words", "-m", "whisper"],
}
VALUES = {
    "out": "out.svg",
    "model": "own-causal",
    "file": "other.txt",
    "line": 2,
    "saved": "a.trace",
    "save_trace": "b.trace",
    "second_text": "It slept.",
    "image": "a.png",
    "video": "frames",
    "audio": "tone.wav",
    "from_second": 0.5,
    "to_second": 1.0,
    "inputs": "tensors.npz",
    "labels": "labels.txt",
    "part": 0,
    "steps": "mean",
    "repeat_random": 4,
    "max_tokens": 4,
    "generate": 2,
    "temperature": 0.7,
    "seed": 3,
    "system": "Be kind.",
    "layers": "1",
    "kind": "cross",
    "head": "L1H1",
    "token": "cat",
    "neurons": "it -> cat",
    "relative": "The dog sat on the mat.",
    "scale": "row",
    "min_weight": 0.2,
    "mark": "it -> cat",
    "zoom": "1-3",
    "cmap": "viridis",
    "dpi": 40,
    "size": 2,
    "font": "DejaVu Serif",
    "title": "A title",
    "graphics": "kitty",
    "prompts": "names.tsv",
    "tokenizer": "own-causal",
    "device": "cpu",
    "device_map": "auto",
    "dtype": "bfloat16",
    "revision": "main",
    "weighting": "norm",
    "target": "mat",
    "against": "dog",
    "texts": "texts.txt",
    "shard": "1/2",
    "merge": "sums-*.json",
    "field": "words",
    "limit": 1,
    "checkpoint": "sums.json",
    "where": "entropy<1.2",
    "sort": "entropy",
    "top": 1,
    "pooled": "pooled.npz",
    "cell": "max",
    "rows": "1-3",
    "by_position": "entropy",
    "head_map": "entropy",
    "gold": "bank.conllu",
    "alignments": "links.txt",
    "relation": "nsubj",
    "with_text": "A dog sat",
    "with_model": "own-causal",
    "with_trace": "b.trace",
    "parts": "line",
    "pair": "1 -> 2",
    "method": "flow",
    "save_snapshot": "s.json",
    "with_snapshot": "before.json",
    "tolerance": 0.5,
    "by": "layer",
    "how": "zero",
    "pairs": "pairs.tsv",
    "what": "q",
    "to": "L2H3:q",
    "faithfulness": 1.0,
    "sink": 2,
    "recent": 3,
    "full_heads": "0.5",
    "needle": "0.5",
    "length": 16,
    "revisions": "a,b",
    "measure": "entropy",
    "log": "log.jsonl",
    "keep_mass": 0.5,
    "formats": "svg",
    "tokens": 100,
    "format": "srt",
    "heads": "L0H1",
    "second": "other",
    "times": "times.txt",
    "channel": 3,
}
"""A value that matters, by the field of an option."""

OWN_VALUES = {
    "check": {"format": "junit"},
    "show": {"by": "entropy"},
    "stats": {"head": "L0H1,L1H1,L2H1,L3H1"},  # of which --where and --top leave some
    "compare": {"with_model": "new"},  # one with the same tokens: of others, words are merged anyway
    "why": {"against": "it -> The", "depth": 2},
}
"""Those of one command."""

KEYS = {
    "out",
    "as_json",
    "as_csv",
    "as_latex",
    "jsonl",
    "head",
    "token",
    "neurons",
    "head_map",
    "by_position",
    "faithful",
    "composition",
    "gold",
    "written",
    "pair",
    "audit",
    "copying",
    "cost",
    "defaults",
    "plugins",
    "importance",
    "mean",
    "by",
    "fast",
    "rank",
    "format",
    "with_text",
    "with_model",
    "with_trace",
}
"""Outputs, formats and modes: the day types the pairs with one of them."""

FREE = {
    "trust_remote_code": "permits code, and runs none here",
    "allow_pickle": "permits pickles, and there is none here",
    "offline": "permits no network, and none is used",
    "device": "names the only device here",
    "device_map": "spreads a model that is large",
    "no_cache": "runs the model again, for the same answer",
    "checkpoint": "saves sums, and an answer beside them",
    "truncate": "cuts a text that is too long, and this one fits",
    "open_file": "opens the saved file in another program",
    "graphics": "draws dots in a terminal that can, and this is none",
    "dtype": "rounds, and a few digits are shown",
    "cell": "pools a text that is longer than its cells, and this is shorter",
    "raw_csv": "leaves cells that begin a formula, and there is none",
    "annotate": "writes weights into the cells of a head, and one of few tokens has them anyway",
    "no_caption": "leaves out numbers and notes, and a picture may have none",
    "exact_kernel": "keeps the kernel for a text of 512 tokens or more",
    "strict": "ends at a text that cannot be read, and all can",
    "force": "overwrites what is there, and nothing is",
}
"""Options that need not change an answer, and why."""

ALIKE = {("info", "audit")}
"""Modes whose answer is one sentence here, whatever is read: in the bundled encoder nothing else mixes."""


@pytest.fixture(scope="module")
def folder(place):
    """The files that the values name, beside those of all commands."""
    (place / "other.txt").write_text("A dog lay there.")
    (place / "parts.txt").write_text("x")
    (place / "times.txt").write_text("0 0.5 Some\n0.5 1 words\n")
    write_trace(record_trace(model := load("own"), model.prepare("A dog sat.")), place / "b.trace")
    for name in ("one", "two"):
        folders.gpt2(place / name)
    return place


ASKED = {
    "cachecost": "cachecost",
    "circuit": "find_circuit",
    "faithful": "compare_methods compare_weighted_heads",
    "flow": "follow_flow",
    "logits": "direct_effects logit_lens",
    "loss": "ablate",
    "patching": "patch",
    "prompts": "cut",
    "stats": "measure_heads",
    "why": "explain_head",
}
"""Questions that run a model often: each is asked once, however many options draw or print its answer."""


def content(value, kept):
    """What tells two arguments apart: their numbers and words, or else which object they are.

    ``kept`` has each record by its number, with the record itself, or another would get that number.
    """
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.detach().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if is_dataclass(value):
        if id(value) not in kept:
            parts = (content(getattr(value, each.name), kept) for each in fields(value))
            kept[id(value)] = value, (type(value), *parts)
        return kept[id(value)][1]
    if isinstance(value, Mapping):
        return tuple((key, content(each, kept)) for key, each in value.items())
    if isinstance(value, (set, frozenset)):
        return frozenset(content(each, kept) for each in value)
    return tuple(content(each, kept) for each in value) if isinstance(value, (list, tuple)) else value


def remembered(ask, kept):
    """A question with a memory. An option that it does not see gets the same answer, and does nothing."""
    known = {}

    def question(*given, **options):
        key = content(given, kept), content(options, kept)
        if key not in known:
            known[key] = ask(*given, **options)
        return known[key]

    return question


def drawn(draw, kept):
    """A picture with a memory, to the same bytes."""
    known = {}

    def save(view, path, **look):
        key = content(view, kept), path.suffix, content(look, kept)
        if key in known:
            path.write_bytes(known[key][0])
        else:
            warnings = draw(view, path, **look)
            known[key] = path.read_bytes(), warnings
        return known[key][1]

    return save


@pytest.fixture
def answer(run, folder, monkeypatch):
    """What a command gives: exit code, output, and files, which are removed again."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(folder / "cache"))
    monkeypatch.setattr("attnscope.storage.cache.read_trace", cache(read_trace))  # parsed once
    monkeypatch.setattr("attnscope.models.identity.hash_file", cache(hash_file))  # no model changes
    # at a third of the resolution, which still tells pictures apart
    draw = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda *given, **more: draw(*given, **more | {"dpi": 100}))
    for each in iter_modules(questions.__path__):  # before one of them imports a question with a memory
        import_module(f"{questions.__name__}.{each.name}")
    kept = {}
    for file, names in ASKED.items():
        for name in names.split():
            path = f"{questions.__name__}.{file}"
            monkeypatch.setattr(f"{path}.{name}", remembered(getattr(import_module(path), name), kept))
    save = drawn(image.save_image, kept)
    monkeypatch.setattr(image, "save_image", save)
    monkeypatch.setattr(
        image.Album,
        "save",
        lambda album, *one: save(*one, dpi=album._dpi, **album._look),  # the same bytes
    )
    known = {}

    def listed():
        """What lies in the folder, but for what is below its folders: there, nothing is written."""
        return {entry.path: entry.stat().st_mtime_ns for entry in os.scandir(folder) if entry.name != "cache"}

    before = listed()

    def answer(words):
        words = tuple(map(str, words))
        if words not in known:
            ran = run(*words)
            new = [Path(path) for path, when in listed().items() if before.get(path) != when]
            made = [file for path in new for file in (path.rglob("*.*") if path.is_dir() else [path])]
            out = re.sub(r"cached \d\d:\d\d", "", ran.out)
            known[words] = ran.code, out, {str(path): path.read_bytes() for path in made}, ran.err
            for path in new:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return known[words]

    return answer


def typed(command, option) -> list:
    """The words of an option with its value."""
    name = max(option.opts, key=len)
    return [name] if option.is_flag else [name, (VALUES | OWN_VALUES.get(command, {}))[option.name]]


@pytest.mark.parametrize("command", BASES)
def test_every_accepted_option_changes_the_output(answer, command, request):
    base, silent, raised = [command, *BASES[command]], [], []
    options = [
        each for each in build(command).params if each.param_type_name == "option" and each.name not in FREE
    ]
    options = [
        each
        for each in options
        if getattr(each, "rich_help_panel", "") != "Every command" and each.name != "help"
    ]
    options = [each for each in options if not {*each.opts} & {*base}]
    code, *plain = answer(base)
    assert code in (0, 1), plain
    for one in options:
        alone = answer([*base, *typed(command, one)])
        if alone[0] != 2 and alone[:3] == (code, *plain[:2]):
            silent.append((one.opts[0],))
    for one, other in combinations(options, 2):
        if not (request.config.getoption("whole") or {one.name, other.name} & KEYS):
            continue
        both = answer([*base, *typed(command, one), *typed(command, other)])
        if "unexpected" in both[3]:
            raised.append((one.opts[0], other.opts[0], both[3]))
        if both[0] == 2 or {(command, one.name), (command, other.name)} & ALIKE:
            continue
        for each, left in ((one, other), (other, one)):
            if both[:3] == answer([*base, *typed(command, left)])[:3]:
                silent.append((left.opts[0], each.opts[0]))
    pairs = [pair for pair in silent if len(pair) == 1 or (pair[1],) not in silent]
    assert not raised
    assert not pairs, "\n".join(
        f"{command} " + " does nothing beside ".join(pair[::-1])
        if len(pair) > 1
        else f"{command} {pair[0]} does nothing"
        for pair in pairs
    )
