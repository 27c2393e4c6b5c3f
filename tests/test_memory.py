"""What is free, and what is refused because it is not."""

from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest

from attnscope import limits as memory
from attnscope.errors import SizeError
from attnscope.limits import OutOfTime, time_limited


def test_what_is_free_is_a_plausible_number():
    free = memory.free_memory()
    assert 1e6 < free < 1e15


def test_what_does_not_fit_is_refused_with_both_numbers_and_a_way_out(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 2 * 10**9)
    with pytest.raises(SizeError) as refused:
        memory.require(3_400_000_000, "the model", "take a smaller --dtype")
    assert str(refused.value) == (
        "the model would take 3.4 GB, and 2.0 GB of memory are free: take a smaller --dtype"
    )


@pytest.mark.parametrize("size", [0, 10**6, 2 * 10**9])
def test_what_fits_passes(monkeypatch, size):
    monkeypatch.setattr(memory, "free_memory", lambda: 2 * 10**9)
    memory.require(size, "it", "")


def test_little_work_does_not_even_look(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 0)
    memory.require(memory.UNNOTICED, "it", "")


def test_the_tighter_of_machine_and_container_counts(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5))
    monkeypatch.setattr(memory, "_container", lambda: 3)
    assert memory.free_memory() == 3
    monkeypatch.setattr(memory, "_container", lambda: None)
    assert memory.free_memory() == 5


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 bytes"), (1_500, "1.5 kB"), (64_000_000, "64 MB"), (7.25e12, "7,250.0 GB")]
)
def test_sizes_are_told_as_a_person_says_them(size, text):
    assert memory.readable(size) == text


def test_a_limit_of_time_that_somebody_swallowed_is_raised_again():
    def run_on():
        while True:
            pass

    def swallow():
        with suppress(OutOfTime):
            run_on()
        run_on()

    with pytest.raises(OutOfTime), time_limited(0.05):
        swallow()


@pytest.mark.parametrize(("asked", "limit"), [("3G", 3e9), ("2500 MB", 2.5e9), ("1.5TB", 1.5e12)])
def test_a_command_takes_no_more_memory_than_is_asked_for(monkeypatch, asked, limit):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setenv("ATTNSCOPE_MEMORY", asked)
    with suppress(ZeroDivisionError), memory.memory_limited():
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == limit
        raise ZeroDivisionError
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_memory_is_limited_to_what_is_free_unless_it_is_off(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(memory, "free_memory", lambda: 5 << 30)
    with memory.memory_limited():
        assert 5 << 30 <= resource.getrlimit(resource.RLIMIT_DATA)[0] < 10 << 30
    monkeypatch.setenv("ATTNSCOPE_MEMORY", "off")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory.memory_limited():
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_size_or_a_deadline_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("ATTNSCOPE_MEMORY", "much")
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "soon")
    with (
        pytest.raises(SizeError, match="ATTNSCOPE_MEMORY=much is no size: write 4G"),
        memory.memory_limited(),
    ):
        pass
    with pytest.raises(SizeError, match="ATTNSCOPE_DEADLINE=soon is no number of seconds"):
        memory.foreign_seconds()
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "off")
    assert memory.foreign_seconds() is None
