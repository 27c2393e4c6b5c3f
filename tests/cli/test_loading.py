"""Every command that loads a model loads it as the options say."""

import pytest

from tests.models.folders import gpt2

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("accelerate")
    return gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("command", ["show", "stats", "compare", "info", "check"])
def test_a_model_may_lie_where_accelerate_puts_it(run, folder, command):
    words = {
        "info": ("info", folder, "--json"),
        "check": ("check", "any.first > 0", "--text", TEXT, "-m", folder),
    }.get(command, (command, TEXT, "-m", folder, "--json"))
    plain, placed = run(*words), run(*words, "--device-map", "auto")
    assert (placed.code, placed.out) == (0, plain.out), placed.err


def test_an_export_may_too(run, folder, tmp_path):
    ran = run("export", TEXT, "-m", folder, "--device-map", "auto", "--format", "npz", "-o", tmp_path)
    assert (ran.code, (tmp_path / "heads.npz").exists()) == (0, True)


def test_a_device_beside_a_device_map_is_refused(run, folder):
    assert (
        run("export", TEXT, "-m", folder, "--device-map", "auto", "--device", "cpu", "-o", "nowhere")
        .refuses("a device map places the layers: leave out the device")
        .err.count("\n")
        == 1
    )
