"""Fixtures for commands."""

import pytest

from tests.cli.run import Loader
from tests.models.folders import gpt2, t5

LOADER = Loader()


@pytest.fixture(autouse=True)
def remembered(request, monkeypatch):
    """Commands load a model once; tests of loading itself say ``loads``, and load it every time."""
    if request.node.get_closest_marker("loads") is None:
        monkeypatch.setattr("attnscope.models.load", LOADER)


@pytest.fixture(scope="session")
def causal_folder(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory):
    return t5(tmp_path_factory.mktemp("t5"))
