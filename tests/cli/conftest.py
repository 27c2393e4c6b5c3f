"""Fixtures for commands."""

import pytest

from tests.cli.run import runner
from tests.models.folders import gpt2, mamba, t5


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    return runner(monkeypatch, capsys)


@pytest.fixture(scope="session")
def causal_folder(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory):
    return t5(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="session")
def mamba_folder(tmp_path_factory):
    return mamba(tmp_path_factory.mktemp("mamba"))
