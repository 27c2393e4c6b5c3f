"""The examples of the documentation, run as they stand there: other tools read our files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnscope.models import load
from attnscope.questions.layers import whole_layers
from attnscope.questions.selection import Selection
from attnscope.storage import arrays as data

README = Path(data.__file__).with_name("README.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"(\w+):\n\n```python\n(.*?)```", README, re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model, folder = load("own"), tmp_path_factory.mktemp("heads")
    layers = whole_layers(model, model.prepare("The cat sat on the mat."), Selection())
    for suffix in ("npz", "safetensors"):
        layers.save(folder / f"heads.{suffix}")
    return folder


def test_every_tool_that_is_named_has_an_example_of_few_lines():
    assert list(EXAMPLES) == ["NumPy", "safetensors", "bertviz", "CircuitsVis"]
    assert all(3 <= len(example.replace("\n\n", "\n").splitlines()) <= 4 for example in EXAMPLES.values())


@pytest.mark.parametrize("tool", ["NumPy", "safetensors", "bertviz", "CircuitsVis"])
def test_an_example_runs_as_it_stands(tool, folder, monkeypatch, capsys):
    pytest.importorskip(tool.lower(), reason=f"{tool} is not installed: its example cannot run")
    monkeypatch.chdir(folder)
    shown: list[object] = []
    if tool == "bertviz":  # what it would hand to a notebook
        monkeypatch.setitem(__import__("bertviz").head_view.__globals__, "display", shown.append)
    names: dict[str, object] = {}
    exec(EXAMPLES[tool], names)
    assert "maps" in names
    if tool == "bertviz":
        assert shown
    elif tool != "CircuitsVis":
        assert "0." in capsys.readouterr().out
