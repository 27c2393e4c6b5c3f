"""The imports of commands: --help is instant, and a trace or a cached pass needs no torch.

One fresh process forks for each question, so that Python and the common imports are loaded once. Commands
that must not import the same modules run one after another in one fork.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.models.folders import gpt2, minilm

TEXT = "The cat sat on the mat."
LIBRARY = {"transformers"}
TENSORS = {"torch", *LIBRARY}
HEAVY = {*TENSORS, "scipy", "matplotlib", "tokenizers", "huggingface_hub", "sympy"}
LOOKS = (
    "show|show --json|show --head L2H1 --words|show --token cat --words --hide-special|"
    "stats --sort previous --where role=first|stats --map entropy"
)
TYPED = {  # in a shell, before Tab
    "attnscope show x --cmap vir": "viridis",
    "attnscope stats x --sort ent": "entropy",
    "attnscope sch": "schema",
}

FORKS = """
import json, os, sys

def answer(steps, place):
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        os.dup2(os.open(f"{place}.{number}", os.O_CREAT | os.O_WRONLY), number)
    for program, arguments in steps:
        sys.argv = ["attnscope", *arguments]
        try:
            exec(program, {"__name__": "asked"})
        except SystemExit as end:
            print(f"ended with {end.code or 0}", file=sys.stderr)
    sys.stdout.flush()
    with open(f"{place}.modules", "w") as file:
        json.dump(sorted({name for name in sys.modules}), file)
    os._exit(0)

asked = json.load(sys.stdin)
for number, steps in enumerate(asked):
    if not os.fork():
        answer(steps, f"{sys.argv[1]}/{number}")
    os.wait()
"""
COMMAND = "from attnscope.cli import main; main()"
TAB = (
    "import os, sys; words = sys.argv[1:]\n"
    "os.environ.update(_ATTNSCOPE_COMPLETE='complete_bash', COMP_WORDS=' '.join(words))\n"
    "os.environ['COMP_CWORD'] = str(len(words) - 1)\n"
) + COMMAND
UNSHOWN = (
    "from attnscope.browser import Browser; Browser.run = lambda browser: None\n"
    "from importlib import import_module\n"
    "import_module('attnscope.cli.commands.browse').has_terminal = lambda: True\n"
) + COMMAND
ROWS = (
    "from attnscope.attention import Head; from attnscope.storage.trace import read_trace\n"
    "import sys; print(read_trace(sys.argv[1]).weights(Head('L2H1')).shape)"
)
OUR_MAPS = (
    "from attnscope.render.colour import choose_map, terminal_colours, table\n"
    "for signed in (True, False): table(choose_map(None, signed=signed)); terminal_colours('ember')"
)
ENCODER = (
    "from attnscope import network\n"
    "encoder, _ = network.load_encoder(network.folder_of('own'))\n"
    "network.Encoder(encoder.config)"
)


def ask(questions, place):
    """Of each list of programs with arguments: the modules they import, what they print, and their errors."""
    place.mkdir()
    subprocess.run(
        [sys.executable, "-c", FORKS, str(place)], input=json.dumps(questions), text=True, check=True
    )
    for number in range(len(questions)):
        modules = json.loads((place / f"{number}.modules").read_text())
        yield set(modules), *((place / f"{number}.{stream}").read_text() for stream in (1, 2))


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
def test_heavy_modules_are_imported_only_when_needed(run, monkeypatch, tmp_path):
    trace, folder = str(tmp_path / "a.trace"), gpt2(tmp_path / "gpt2")
    assert run("show", TEXT, "-m", minilm(), "--save-trace", trace).code == 0
    assert run("show", TEXT, "-o", tmp_path / "a.npz").code == 0
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "cache"))
    assert run("show", TEXT, "-m", folder).code == 0
    cached, files = ["-m", folder, TEXT], [tmp_path / f"head.{suffix}" for suffix in ("png", "pdf")]

    def command(words, *arguments):
        return COMMAND, [*words.split(), *map(str, arguments)]

    questions = [  # what must not be imported, and by which programs with arguments
        (HEAVY | {"numpy"}, [command("--help")]),
        (HEAVY - {"torch", "tokenizers"} | {"sentencepiece"}, [command("show", TEXT)]),
        (
            HEAVY | {"attnscope.cli.commands.train"},
            [command(f"{words} --from", trace) for words in LOOKS.split("|")],
        ),
        (HEAVY, [("import attnscope.render.terminal, attnscope.views", []), (OUR_MAPS, [])]),
        (
            TENSORS,
            [
                ("import attnscope.cli.commands.train", []),
                *(command(f"show --head L2H1 --from {trace} -o", file) for file in files),
                (ROWS, [trace]),
                command("show --head L1H0 --words", *cached),
                command("show --head L1H0 -o", tmp_path / "cached.png", *cached),
            ],
        ),
        (
            LIBRARY,
            [
                command("show --head 0.0 --from", tmp_path / "a.npz"),
                command("compare", *cached),
                command("export -o", tmp_path / "again", *cached),
                *([(UNSHOWN, ["browse", *cached, "-o", str(tmp_path)])] if find_spec("textual") else ()),
            ],
        ),
        ({"torch", "numpy", "rich"}, [("import attnscope", [])]),
        ({"torch", "importlib.metadata"}, [("import attnscope.measures", [])]),
        ({"transformers", "matplotlib", "scipy", "torch._dynamo"}, [(ENCODER, [])]),
        ({"torch"}, [(TAB, typed.split()) for typed in TYPED]),
    ]
    answers = ask([steps for _, steps in questions], tmp_path / "asked")
    printed = ""
    for (without, steps), (modules, out, told) in zip(questions, answers, strict=True):
        assert not modules & without, steps
        assert (
            all("--help" in step[1] or step[0].startswith("import ") for step in steps) or "numpy" in modules
        )
        assert not re.search("^attnscope: |Error|ended with [^0]", told, re.MULTILINE), (steps, told)
        printed += out
    assert {"(9, 9)", *TYPED.values()} <= {*printed.split("\n")}
    assert all(file.exists() for file in files)
