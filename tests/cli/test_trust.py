"""Nothing that is read automatically runs code, and the tests named in the security guide exist."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attnscope

TEXT = "The cat sat on the mat."
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / ".github" / "SECURITY.md"
HOOKS = (
    "torch.py",
    "numpy.py",
    "sitecustomize.py",
    "usercustomize.py",
    "conftest.py",
    "evil.py",
    "matplotlib.py",
)
"""Modules that Python imports, or might, by their names alone."""


@pytest.mark.skipif(not GUIDE.exists(), reason="an installed package has no guide")
def test_security_guide_names_existing_tests():
    rows = [row for row in GUIDE.read_text("utf-8").splitlines() if row.startswith("| ")][2:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)` (\w+(?:, test_\w+)*)", row)
        assert named, row
        for file, tests in named:
            source = (ROOT / file).read_text("utf-8")
            for test in tests.split(", "):
                assert f"def {test}(" in source, f"{file} has no {test}"


@pytest.fixture
def hostile(tmp_path):
    """A folder in which everything that Python, attnscope and matplotlib know by its name is hostile."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\nM = None"
    folder = tmp_path / "theirs"
    described = folder / "evil-1.0.dist-info"
    described.mkdir(parents=True)
    for name in HOOKS:
        (folder / name).write_text(code)
    (folder / "evil.pth").write_text(f"import sys; {code.splitlines()[0]}")
    groups = ("measures", "commands", "hooks", "readers")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    points = "".join(f"[attnscope.{group}]\nevil = evil:M\n" for group in groups)
    (described / "entry_points.txt").write_text(points)
    (folder / "matplotlibrc").write_text("backend: module://evil\ntext.usetex: True\nfont.size: 40\n")
    settings = 'out = "evil.svg"\ntrust-remote-code = true\nmodel = "evil:M"\nwith-model = "evil.py:M"\n'
    (folder / "pyproject.toml").write_text(f"[tool.attnscope]\n{settings}")
    return folder


def start(folder, *words, **variables):
    """Run a script as pip writes it in a folder: not that is on the path, but the folder of the script."""
    script = folder.parent / "command"
    script.write_text("from attnscope.__main__ import main\nmain()")
    command = [sys.executable, script, *words]
    ran = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True)
    assert not (folder.parent / "ran").exists()
    return ran


@pytest.mark.subprocess
@pytest.mark.parametrize("asked", [["show", TEXT, "-o", "own.svg"], ["stats", TEXT], ["info", "--plugins"]])
def test_untrusted_folder_runs_no_code(hostile, asked):
    before = {path.name for path in hostile.iterdir()}
    ran = start(hostile, *asked)
    assert ran.returncode == 0, ran.stderr
    assert "evil" not in ran.stdout
    assert {path.name for path in hostile.iterdir()} - before <= {"own.svg"}


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("typed", "offered"), [("show --cmap viri", "viridis"), ("show -m own", "own-causal"), ("stat", "stats")]
)
def test_completion_runs_no_code_and_prints_no_errors(hostile, typed, offered):
    count = str(len(typed.split()))
    words = {"COMP_WORDS": f"attnscope {typed}", "COMP_CWORD": count}
    ran = start(hostile, **words, _ATTNSCOPE_COMPLETE="complete_bash")
    assert offered in ran.stdout.split()
    assert ran.stderr == ""


def test_package_has_no_startup_hooks():
    package = Path(attnscope.__file__).parent
    assert not [*package.rglob("*.pth"), *package.rglob("sitecustomize.py")]
    assert "import" in (package / "__init__.py").read_text("utf-8")  # the folder that was meant


@pytest.mark.parametrize(
    "manifest",
    [
        {"unfinished export": "../kept.txt", "files": [{"name": "../kept.txt"}]},
        {"unfinished export": ["../kept.txt"], "files": "../kept.txt"},
        ["../kept.txt"],
        "../kept.txt",
        None,
    ],
)
def test_untrusted_manifest_touches_no_named_file(run, tmp_path, monkeypatch, manifest):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    ran = run("export", TEXT, "-o", "out", "--format", "json", "--head", "0", "--force")
    assert ran.code == 0, ran.err
    assert (tmp_path / "kept.txt").read_text() == "kept"
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    names = [each["name"] for each in json.loads((tmp_path / "out" / "manifest.json").read_text())["files"]]
    assert all((tmp_path / "out" / name).is_file() and "/" not in name for name in names)
