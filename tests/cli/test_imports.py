"""What a command imports: --help answers at once, and a trace or a cached pass needs no torch.

One fresh process forks for each question, so that Python and what all commands import are loaded once.
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
HEAVY = {"torch", "transformers", "scipy", "matplotlib", "tokenizers", "huggingface_hub", "sympy"}
LIBRARY = {"transformers"}
TENSORS = {"torch", "transformers"}
LOOKS = [
    "show",
    "show --json",
    "show --head L2H1 --words",
    "show --token cat --words --hide-special",
    "stats --sort previous --where role=first",
    "stats --map entropy --json",
]
TYPED = {  # in a shell, before Tab
    "attnscope show x --cmap vir": "viridis",
    "attnscope stats x --sort ent": "entropy",
    "attnscope sch": "schema",
}

FORKS = """
import json, os, sys

def answer(program, arguments, place):
    sys.argv = ["attnscope", *arguments]
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        os.dup2(os.open(f"{place}.{number}", os.O_CREAT | os.O_WRONLY), number)
    try:
        exec(program, {"__name__": "asked"})
    except SystemExit as end:
        print(f"ended with {end.code or 0}", file=sys.stderr)
    sys.stdout.flush()
    with open(f"{place}.modules", "w") as file:
        json.dump(sorted({name for name in sys.modules}), file)
    os._exit(0)

asked = json.load(sys.stdin)
for number, (program, arguments) in enumerate(asked):
    if not os.fork():
        answer(program, arguments, f"{sys.argv[1]}/{number}")
    os.wait()
"""
COMMAND = "from attnscope.cli import main; main()"
TAB = (
    "import os, sys; words = sys.argv[1:]\n"
    "os.environ.update(_ATTNSCOPE_COMPLETE='bash_complete', COMP_WORDS=' '.join(words))\n"
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
ENCODER = (
    "from attnscope import network\n"
    "encoder, _ = network.load_encoder(network.folder_of('own'))\n"
    "network.Encoder(encoder.config)"
)


def ask(questions, place):
    """Of each program with arguments: the modules that it imports, what it prints, and its errors."""
    place.mkdir()
    subprocess.run(
        [sys.executable, "-c", FORKS, str(place)], input=json.dumps(questions), text=True, check=True
    )
    for number in range(len(questions)):
        modules = json.loads((place / f"{number}.modules").read_text())
        yield set(modules), *((place / f"{number}.{stream}").read_text() for stream in (1, 2))


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
def test_no_module_is_imported_before_it_is_needed(run, monkeypatch, tmp_path):
    trace, folder = str(tmp_path / "a.trace"), gpt2(tmp_path / "gpt2")
    assert run("show", TEXT, "-m", minilm(), "--keep", trace).code == 0
    assert run("show", TEXT, "-o", tmp_path / "a.npz").code == 0
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "cache"))
    assert run("show", TEXT, "-m", folder).code == 0
    rows = []  # program, arguments, what must not be imported, what must be printed

    def command(words, *arguments, without):
        rows.append((COMMAND, [*words.split(), *map(str, arguments)], without, ""))

    command("--help", without=HEAVY | {"numpy"})
    command("show", TEXT, without=HEAVY - {"torch", "tokenizers"} | {"sentencepiece"})
    command("show --head 0.0 --from", tmp_path / "a.npz", without=LIBRARY)
    for words in LOOKS:
        command(f"{words} --from", trace, without=HEAVY | {"pydantic", "attnscope.cli.commands.train"})
    for suffix in ("png", "pdf"):
        command(f"show --head L2H1 --from {trace} -o", tmp_path / f"head.{suffix}", without=TENSORS)
    rows.append((ROWS, [trace], TENSORS, "(9, 9)"))

    cached = ("-m", folder, TEXT)
    command("show --head L1H0 --words", *cached, without=TENSORS)
    command("show --head L1H0 -o", tmp_path / "cached.png", *cached, without=TENSORS)
    command("compare", *cached, without=LIBRARY)
    command("export -o", tmp_path / "again", *cached, without=LIBRARY)
    if find_spec("textual") is not None:
        rows.append((UNSHOWN, ["browse", *cached, "-o", str(tmp_path)], LIBRARY, ""))

    rows.append(("import attnscope", [], {"torch", "numpy", "rich"}, ""))
    rows.append(("import attnscope.cli.commands.train", [], TENSORS, ""))
    rows.append(("import attnscope.measures", [], {"torch", "importlib.metadata"}, ""))
    rows.append(("import attnscope.render.terminal, attnscope.views", [], HEAVY, ""))
    rows.append((ENCODER, [], {"transformers", "matplotlib", "scipy", "torch._dynamo"}, ""))
    for typed, offered in TYPED.items():
        rows.append((TAB, typed.split(), {"torch"}, f"plain,{offered}"))

    answers = ask([(program, arguments) for program, arguments, *_ in rows], tmp_path / "asked")
    for (program, arguments, without, printed), (modules, out, told) in zip(rows, answers, strict=True):
        assert not modules & without, (program, arguments)
        assert printed in out.split("\n"), (arguments, out, told)
        assert (
            program.startswith("import ") or program == UNSHOWN or "numpy" in modules or "--help" in arguments
        )
        assert not re.search("^attnscope: |Error|ended with [^0]", told, re.MULTILINE), (arguments, told)
    assert all((tmp_path / f"head.{suffix}").exists() for suffix in ("png", "pdf"))
