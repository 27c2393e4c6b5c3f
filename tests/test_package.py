"""The wheel: it is complete, and runs alone."""

import shutil
import subprocess
import sys
import zipfile

import pytest

import attnscope
from tests.cli.run import in_a_process
from tests.tools.readme import ROOT

pytestmark = [pytest.mark.subprocess, pytest.mark.slow]

CAT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "attnscope", source / "attnscope", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return found


def test_wheel_is_small_and_complete(wheel):
    assert wheel.stat().st_size <= 12 << 20  # bytes, with both encoders
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.check_output(["git", "ls-files", "attnscope"], text=True, cwd=ROOT)
    ours = {name for name in tracked.split() if not name.endswith((".md", ".1"))}
    assert ours - names == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("share/man/man1/attnscope.1") for name in names)


def test_installed_wheel_runs_commands_and_notebook_display(wheel, tmp_path):
    assert wheel.name.split("-")[1] == attnscope.__version__
    folder = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    cell = (
        f"import attnscope; assert attnscope.__file__.startswith({str(folder)!r})\n"
        "shown, described = attnscope.load('own').read('The cat sat.')._repr_mimebundle_()\n"
        "assert {'image/png', 'text/html'} & shown.keys()\n"
    )
    commands = {"version": ["--version"], "explained": ["explain", "previous"], "show": ["show", CAT]}
    answers, _ = in_a_process(commands, tmp_path, cell, before=[folder])
    assert [code for code, _ in answers.values()] == [0, 0, 0]
    version, explained, shown = (out for _, out in answers.values())
    assert version.startswith(f"attnscope {attnscope.__version__} (torch ")
    assert "formula" in explained
    assert "L0H7" in shown
