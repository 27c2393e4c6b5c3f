"""``attnscope browse`` before its screen opens."""

import builtins
import sys
from importlib import import_module

import pytest

TEXT = "The cat sat on the mat."


@pytest.fixture(autouse=True)
def terminal(request, monkeypatch):
    """Tests have no terminal; all but one browse as if they had."""
    if "without_a_terminal" not in request.node.name:
        browse = import_module("attnscope.cli.commands.browse")
        monkeypatch.setattr(browse, "has_terminal", lambda: True)


def test_without_a_terminal_it_ends_in_a_sentence(run):
    ran = run("browse", TEXT, "-m", "no-such-model")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("attnscope: browse needs a terminal")


def test_without_textual_one_sentence_says_how_to_install_it(run, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == "textual":
            raise ModuleNotFoundError("No module named 'textual'", name="textual")
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.startswith("attnscope.browser")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    ran = run("browse", TEXT)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "attnscope: browsing needs Textual, which is not installed: pip install 'attnscope[browse]'\n"
    )


def test_a_folder_that_is_not_there_is_told_before_the_model_is_loaded(run, tmp_path):
    run("browse", TEXT, "-o", tmp_path / "nowhere", "-m", "no-such-folder/at/all").refuses(
        "there is no such folder"
    )


def test_the_browser_is_given_what_the_command_says(run, monkeypatch, tmp_path):
    app = pytest.importorskip("textual.app", reason="Textual is not installed")
    seen = []
    monkeypatch.setattr(app.App, "run", lambda self: seen.append(self))
    assert run("browse", TEXT, "-o", tmp_path, "--cmap", "viridis", "--scale", "row", "--words").code == 0
    (browser,) = seen
    assert (browser.folder, browser.cmap, browser.heads.selection.scale) == (tmp_path, "viridis", "row")
    assert browser.heads.selection.words
