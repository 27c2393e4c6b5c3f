"""An installed package adds a measure, a command, a hook and a reader."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnscope
from tests.cli.run import in_a_process

pytestmark = [pytest.mark.subprocess, pytest.mark.slow]

TEXT = "The cat sat on the mat because it was tired."
COMMANDS = {
    "help": ["--help"],
    "stats": ["stats", TEXT, "--sort", "far", "--json", "--no-cache"],
    "count": ["count", TEXT],
    "explain": ["explain", "far"],
    "plugins": ["info", "--plugins"],
    "file": ["show", "--from", "head.txt", "--head", "L0H0", "--json"],
}


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """What each command answers where the sample is installed, and what stands on standard error."""
    source, folder = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("installed")
    shutil.copytree(Path(__file__).parent / "plugin", source)
    install = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", folder, source]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    np.savetxt(folder / "head.txt", np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None])
    return in_a_process(COMMANDS, folder, before=[folder])


def test_plugin_measure_is_listed_and_hook_sees_every_call(beside):
    answers, _ = beside
    code, out = answers["stats"]
    assert code == 0
    assert "attnscope-sample saw 4 calls" in json.loads(out)["notes"]
    run = attnscope.load("own").read(TEXT)
    for each in json.loads(out)["heads"]:
        score, rows = each["scores"]["far"], run.head(f"L{each['layer']}H{each['head']}").weights
        gap = np.arange(rows.shape[1])[None] - np.arange(len(rows))[:, None]
        assert score["value"] == pytest.approx((rows * (abs(gap) > 8)).sum(-1).mean(), abs=1e-6)
    assert answers["explain"][1].startswith("far")


def test_plugin_command_is_in_help_and_reader_opens_its_suffix(beside):
    answers, _ = beside
    assert answers["count"] == [0, "32\n"]
    assert "attnscope-sample 1.0" in answers["help"][1]
    code, out = answers["file"]
    assert code == 0
    np.testing.assert_allclose(json.loads(out)["weights"][2], [1 / 3] * 3, atol=1e-6)


def test_broken_plugin_is_named_and_skipped(beside):
    answers, error = beside
    assert "attnscope: the plugin broken of attnscope-sample 1.0 is left out: ModuleNotFoundError" in error
    assert answers["plugins"][1].count("loaded") == 4
    assert "ModuleNotFoundError" in answers["plugins"][1]
