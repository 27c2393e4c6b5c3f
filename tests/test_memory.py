"""The memory limit and the deadline: their values, and their one-sentence errors."""

import platform
from contextlib import nullcontext, suppress
from time import thread_time

import numpy as np
import pytest
import torch

from attnscope import limits
from attnscope.errors import InputError, ModelError, SizeError, out_of_memory, readable
from attnscope.limits import OutOfTime, deadline, memory_limited

resource = pytest.importorskip("resource", reason="Windows limits no memory")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A gigabyte beyond what the tests have taken, and a twentieth of a second."""
    taken = limits._bytes("/proc/self/status", "VmData")
    monkeypatch.setenv("ATTNSCOPE_MEMORY", f"{(taken >> 20) + 1000}M")
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "0.05")


ASKING = {
    "torch": lambda: torch.empty(10**11, dtype=torch.uint8),
    "NumPy": lambda: np.empty(10**11, np.uint8),
    "Python": lambda: bytes(10**11),
}


@pytest.mark.parametrize("library", ASKING)
def test_out_of_memory_error_has_the_limit(library):
    much = "more memory than there is" if library == "Python" else "100.0 GB"
    said = f"out of memory: {library} asked for {much}; the command may take .* ATTNSCOPE_MEMORY"
    with pytest.raises(SizeError, match=said), memory_limited():
        ASKING[library]()


def refuse():
    try:
        ASKING["NumPy"]()
    except MemoryError as error:
        raise ModelError("the model is none") from error


def test_error_caused_by_memory_keeps_its_sentence():
    said = r"^the model is none \(out of memory: NumPy asked for 100.0 GB\); the command may take"
    with pytest.raises(SizeError, match=said), memory_limited():
        refuse()


def test_memory_limit_ends_with_command_and_needs_linux(monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(ZeroDivisionError), memory_limited():
        assert resource.getrlimit(resource.RLIMIT_DATA) != before
        raise ZeroDivisionError
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    monkeypatch.setattr(limits, "_bytes", lambda *asked: int("no Linux"))
    with memory_limited():
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_memory_limit_is_the_setting_or_most_of_free_memory(monkeypatch):
    for asked, size in {"off": None, "4G": 4 * 10**9, "900 mb": 9 * 10**8}.items():
        monkeypatch.setenv("ATTNSCOPE_MEMORY", asked)
        assert limits.most_memory() == size
    monkeypatch.delenv("ATTNSCOPE_MEMORY")
    monkeypatch.setattr(limits, "_container", lambda: 4 << 30)
    taken = limits._bytes("/proc/self/status", "VmData")
    assert 2 << 30 < limits.most_memory() - taken < 4 << 30
    monkeypatch.setattr(limits, "_container", lambda: 0)
    assert limits.most_memory() - taken == pytest.approx(limits.LEAST_MEMORY_BYTES, rel=0.1)


GROUPS = {  # by what /proc/self/cgroup says: limit and use of groups, and what they leave
    "0::/ours/inner": ({"ours/inner": ("max", 0), "ours": (900, 300), "": (5000, 0)}, 650),
    "0::/alone": ({"alone": (400, 300)}, 150),
    "0::/": ({"": (2000, 300)}, 1750),
    "0::/a/path/of/outside": ({"": (700, 300)}, 450),
    "0::/free": ({"free": ("max", 300)}, limits.math.inf),
    "4:cpu,memory:/ours/inner\n1:cpu:/": (
        {"memory/ours/inner": (1 << 62, 0), "memory/ours": (900, 300)},
        650,
    ),
    "4:memory:/docker/1234\n0::/": ({"memory": (800, 100)}, 750),
    "4:memory:/over\n0::/": ({"memory/over": (100, 900)}, 0),
    "3:cpu:/ours": ({"memory/ours": (900, 300), "ours": (900, 300)}, limits.math.inf),
    "4:memory:/ours\n0::/new": ({"memory/ours": (900, 300), "new": (500, 300)}, 250),
}


@pytest.mark.parametrize("said", GROUPS)
def test_tightest_control_group_limits_memory(tmp_path, said):
    groups, left = GROUPS[said]
    for name, (most, taken) in groups.items():
        folder, first = tmp_path / name, name.startswith("memory")
        folder.mkdir(parents=True, exist_ok=True)
        limit, use = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
        (folder / f"memory.{limit}").write_text(f"{most}\n")
        (folder / f"memory.{use}").write_text(f"{taken}\n")
        stat = "inactive_file 7\ntotal_inactive_file 50\n" if first else "file 7\ninactive_file 50\n"
        (folder / "memory.stat").write_text(stat)
    (tmp_path / "cgroup").write_text(f"{said}\n")
    assert limits._container(tmp_path / "cgroup", tmp_path) == left


def test_address_space_limit_limits_memory(monkeypatch):
    monkeypatch.delenv("ATTNSCOPE_MEMORY")
    mapped, taken = (limits._bytes("/proc/self/status", field) for field in ("VmSize", "VmData"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (mapped + 10**9, -1))
    assert limits.most_memory() - taken == pytest.approx(0.9 * 10**9, rel=0.05)


@pytest.mark.parametrize(("limit", "field"), [("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")])
def test_free_memory_follows_the_tightest_limit(monkeypatch, limit, field):
    monkeypatch.setenv("ATTNSCOPE_MEMORY", "off")
    taken = limits._bytes("/proc/self/status", field)
    only = {getattr(resource, limit): taken + 10**9}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (only.get(which, resource.RLIM_INFINITY), -1))
    assert limits.free_memory() == pytest.approx(10**9, rel=0.05)
    monkeypatch.setenv("ATTNSCOPE_MEMORY", "600M")
    assert limits.free_memory() < 6 * 10**8


@pytest.mark.parametrize("name", ["ATTNSCOPE_MEMORY", "ATTNSCOPE_DEADLINE"])
@pytest.mark.parametrize("asked", ["many", "-1", "0", "nan", "1e400", "9" * 500])
def test_invalid_limits_are_refused_with_valid_values(monkeypatch, name, asked):
    monkeypatch.setenv(name, asked)
    with pytest.raises(InputError, match=f"{name} is .*: give .*or off"), memory_limited(), deadline():
        pass


def test_other_errors_are_not_out_of_memory():
    assert not any(map(out_of_memory, (ValueError("x"), KeyError(3), OSError(2, "none"))))


def test_sizes_are_readable():
    told = {12: "12 bytes", 1_500: "1.5 kB", 64_000_000: "64 MB", 7.25e12: "7,250.0 GB"}
    assert {size: readable(size) for size in told} == told


def run_on():
    while True:
        pass


def swallow():
    with suppress(OutOfTime):
        run_on()
    run_on()


class Entered:
    """Works while it is entered: for a fifth of a second, or with ``limited`` until its time is over."""

    whole = False

    def __init__(self, limited=False):
        self.limited = limited

    def __enter__(self):
        with deadline() if self.limited else nullcontext():
            end = thread_time() + (60 if self.limited else 0.2)
            while thread_time() < end:
                pass
        self.whole = True

    def __exit__(self, *error):
        pass


def test_deadline_spares_context_entry_but_limits_its_body():
    entered, around = Entered(), Entered(limited=True)
    with pytest.raises(OutOfTime), deadline(), entered:
        run_on()
    with pytest.raises(OutOfTime), around:
        pass
    assert (entered.whole, around.whole) == (True, False)


def test_swallowed_deadline_error_is_raised_again():
    with pytest.raises(OutOfTime), deadline():
        swallow()


@pytest.mark.skipif(
    "glibc" not in platform.libc_ver(), reason="another C library keeps memory in its own way"
)
def test_free_memory_between_memory_in_use_is_given_back():
    blocks = [bytearray(b"." * 100_000) for _ in range(2000)]
    kept = blocks[::10]
    del blocks
    before = limits._bytes("/proc/self/status", "VmRSS")
    limits.release_memory()
    assert before - limits._bytes("/proc/self/status", "VmRSS") > 100_000_000
    assert len(kept) == 200
