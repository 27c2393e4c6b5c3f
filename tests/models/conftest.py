"""Fixtures shared by tests of models."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnscope import limits
from tests.models.folders import made_once
from tests.models.images import can_import_torchvision, save_noise
from tests.models.vision_language import vision_language


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a tiny vision-language model of a family, made once."""
    return made_once(tmp_path_factory, vision_language)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    return save_noise(tmp_path / "a.png", 90, 120)


TORCHVISION = can_import_torchvision()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of processors that are built on torchvision need it."""
    if item.get_closest_marker("torchvision") is not None and not TORCHVISION:
        pytest.skip("its processor needs torchvision: pip install 'attnscope[images]'")


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no class fits, transformers lists and imports all that it has: here it lists none."""
    mapping = "transformers.models.auto.auto_factory._LazyAutoMapping"
    monkeypatch.setattr(f"{mapping}.__iter__", lambda self: iter(()))


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Foreign work may take 550 MB: a machine that has more would be filled first."""
    taken = limits._bytes("/proc/self/status", "VmData")
    monkeypatch.setenv("ATTNSCOPE_MEMORY", f"{(taken >> 20) + 550}M")
    with limits.memory_limited():
        yield
