"""Run the command line inside the test process, as a user would call it."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnscope.cli import main
from attnscope.models import Model, load
from attnscope.registry import BUNDLED

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """Exit code and both outputs of a command."""

    code: int
    out: str
    err: str

    def refuses(self, sentence: str) -> "Ran":
        """Assert that it answers nothing and says why, however the lines break."""
        said = " ".join(self.err.replace("│", " ").split())
        assert (self.code, self.out) == (2, ""), self
        assert " ".join(sentence.split()) in said
        return self


def numbers(ran) -> str:
    """An answer without what says where it came from, to the last byte."""
    assert ran.code in (0, 1), ran.err
    answer = json.loads(ran.out)
    for name in ("command", "input", "other_input", "options"):
        answer.pop(name, None)
    for file in answer.pop("files", ()):
        assert file["bytes"]
    if "notes" in answer:
        answer["notes"] = [note for note in answer["notes"] if not re.match("from .*trace", note)]
    return json.dumps(answer, ensure_ascii=False)


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A function that runs ``attnscope`` with arguments; its ``json`` and ``csv`` give the numbers."""
    # a process with --offline has no network for good: here, until the test ends
    monkeypatch.setattr("attnscope.limits._everywhere", [])

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr("sys.argv", ["attnscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ran(ended.value.code or 0, out, err)

    run.json = lambda *arguments: json.loads(run(*arguments, "--json").out)
    run.csv = lambda *arguments: list(csv.DictReader(run(*arguments, "--csv").out.splitlines()))
    return run


EACH = """
import json, sys
from contextlib import redirect_stdout
from io import StringIO
from attnscope.cli import main

answers = {}
for name, words in json.loads(sys.argv[1]).items():
    sys.argv[1:] = words
    with redirect_stdout(StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            answers[name] = [end.code or 0, out.getvalue()]
print(json.dumps(answers))
"""


def in_a_process(commands, folder, begin="", before=()):
    """Exit code and output of each command in one process of their own, and what it says on standard error.

    It begins with a program, and finds packages in some folders before ours.
    """
    place = {"PYTHONPATH": os.pathsep.join(map(str, [*before, ROOT])), "COLUMNS": "120"}
    place["ATTNSCOPE_CACHE"] = str(folder / "cache")
    ran = subprocess.run(
        [sys.executable, "-c", begin + EACH, json.dumps(commands)],
        capture_output=True, text=True, cwd=folder, env=os.environ | place,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]), ran.stderr


class Loader:
    """``attnscope.models.load`` with a memory: a folder that did not change is loaded once in all tests."""

    def __init__(self) -> None:
        self.models: dict[object, tuple[Model, object]] = {}

    def __call__(self, name: str = "own", **options) -> Model:
        files = times(name)
        trusting = options.get("trust_remote_code") or options.get("allow_pickle")
        if files is None or trusting or options.get("device_map") is not None:
            return load(name, **options)
        place = name not in BUNDLED and os.getcwd()  # a name of a folder depends on it
        key = (name, place, files, *sorted(options.items()))
        if key in self.models:
            model, state = self.models[key]
            assert state_of(model) == state, f"a command has left something on {name}"
            return model
        model = load(name, **options)
        self.models[key] = model, state_of(model)
        return model


def times(name: str):
    """Path, size and time of change of what a model is made of; ``None`` for what is not a folder."""
    if name in BUNDLED:
        return ()
    files = sorted(path for path in Path(name).rglob("*") if path.is_file()) if Path(name).is_dir() else []
    return tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files) or None


def state_of(model: Model):
    """What tells whether somebody wrote into a model, or left a hook or another method on it."""
    weights = [*model.module.named_parameters(), *model.module.named_buffers()]
    left = [
        (name, part.training, "forward" in vars(part), id(hook))
        for name, part in model.module.named_modules()
        for hook in (None, *part._forward_hooks.values(), *part._forward_pre_hooks.values())
        # transformers' own come with the first ``output_attentions``, and stay
        if hook is None or not hook.__module__.startswith("transformers.")
    ]
    return [(name, id(one), one._version) for name, one in weights], left
