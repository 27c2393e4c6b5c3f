"""Cached passes: found by key, oldest removed first; other files are neither trusted nor touched."""

import os
import time
from hashlib import sha256

import pytest

from attnscope import private
from attnscope.models import load
from attnscope.models.trace_recording import record_trace
from attnscope.storage import cache
from attnscope.storage.cache import clear_passes, find_pass, hash_key, list_passes, store_pass


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A cache of its own, which does not exist yet."""
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept" / "looks"


@pytest.fixture(scope="module")
def traces():
    """Passes of two texts."""
    model = load("own")
    return [record_trace(model, model.prepare(text)) for text in ("The cat sat.", "It slept.")]


KEYS = [f"{number:040}" for number in range(6)]


def texts(passes):
    return ["".join(token.text for token in each.axis(0)) for each in passes]


def stored(folder, key, trace, used):
    store_pass(key, trace)
    (made,) = folder.glob(f"{key}-*")
    os.utime(made, (used, used))
    return made


def test_stored_pass_is_found_by_its_key(folder, traces):
    assert find_pass(KEYS[0]) is None
    assert (list_passes(), clear_passes()) == ([], 0)
    for trace in traces:  # of one key the last
        made = stored(folder, KEYS[0], trace, 1)
        assert texts([find_pass(KEYS[0])]) == texts([trace])
        assert time.time() - made.stat().st_mtime < 100  # it was used
    store_pass(KEYS[1], traces[0])
    assert find_pass(KEYS[2]) is None
    assert len(list(folder.iterdir())) == 2
    assert {(each.stat().st_mode & 0o777) for each in (folder, *folder.iterdir())} == {0o700, 0o600}


def test_passes_are_listed_by_last_use_and_cleared_alone(folder, traces):
    for key, used in zip(KEYS[:3], (5, 9, 7), strict=True):
        stored(folder, key, traces[0], used)
    others = [folder / name for name in ("notes.txt", f"{KEYS[4]}.trace", f"{KEYS[4]}-{KEYS[4]}.trace.bak")]
    for other in others:
        other.write_bytes(b"mine")
    (folder / f"{KEYS[5]}-{KEYS[5]}.trace").mkdir()
    listed = list_passes()
    assert [each.used for each in listed] == [9, 7, 5]
    assert [each.path.name[:40] for each in listed] == [KEYS[1], KEYS[2], KEYS[0]]
    assert {each.size for each in listed} == {listed[0].path.stat().st_size}
    assert clear_passes() == 3
    assert sorted(folder.iterdir()) == sorted([*others, folder / f"{KEYS[5]}-{KEYS[5]}.trace"])


@pytest.mark.parametrize("change", ["its bytes", "its key", "its mode", "a link", "too large"])
def test_cache_entry_that_contradicts_its_name_is_removed(folder, traces, change, tmp_path, monkeypatch):
    made = stored(folder, KEYS[0], traces[0], 1)
    content, key = made.read_bytes(), KEYS[1] if change == "its key" else KEYS[0]
    if change == "its bytes":
        made.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif change == "its key":
        made = made.rename(folder / made.name.replace(KEYS[0], KEYS[1]))
    elif change == "its mode":
        made.chmod(0o604)
    elif change == "a link":
        made.rename(tmp_path / "moved.trace")
        made.symlink_to(tmp_path / "moved.trace")
    else:
        monkeypatch.setattr(cache, "ENTRY_BYTES", len(content) - 1)
    assert list_passes() == []
    assert find_pass(key) is None
    assert not os.path.lexists(made)
    assert (tmp_path / "moved.trace").exists() == (change == "a link")


@pytest.mark.parametrize("spare", [0, -1])
def test_cache_entry_size_limit_is_exact(folder, traces, spare, monkeypatch):
    size = stored(folder, KEYS[0], traces[0], 1).stat().st_size
    clear_passes()
    monkeypatch.setattr(cache, "ENTRY_BYTES", size + spare)
    store_pass(KEYS[0], traces[0])
    assert (find_pass(KEYS[0]) is None) == (spare < 0)


@pytest.mark.parametrize(
    ("limit", "kept"), [("CACHE_BYTES", 3), ("MOST_ENTRIES", 3), ("CACHE_BYTES", 2.99), (None, 5)]
)
def test_oldest_entries_are_removed_at_the_limits(folder, traces, limit, kept, monkeypatch):
    size = stored(folder, KEYS[0], traces[0], 1).stat().st_size
    if limit is not None:
        monkeypatch.setattr(cache, limit, int(kept * size) if limit == "CACHE_BYTES" else kept)
    for number, key in enumerate(KEYS[1:5], 2):
        stored(folder, key, traces[0], number)
    assert sorted(each.name[:40] for each in folder.iterdir()) == KEYS[5 - int(kept) : 5]


def test_unfinished_cache_files_are_removed_after_an_hour(folder, traces):
    stored(folder, KEYS[0], traces[0], 1)
    now = time.time()
    for name, age in (("old", 3700), ("new", 3000)):
        left = folder / f".attnscope-{name}.trace"
        left.write_bytes(b"half")
        os.utime(left, (now - age, now - age))
    store_pass(KEYS[1], traces[0])
    assert sorted(each.name for each in folder.glob(".*")) == [".attnscope-new.trace"]


def test_cache_key_does_not_depend_on_field_order():
    key = hash_key({"text": "cat", "model": "own"})
    assert key == hash_key({"model": "own", "text": "cat"}) != hash_key({"model": "own", "text": "dog"})
    assert key == sha256(b'{"model": "own", "text": "cat"}').hexdigest()[:40]


@pytest.mark.parametrize("off", ["off", " OFF "])
def test_nothing_is_cached_when_caching_is_off(traces, monkeypatch, off):
    monkeypatch.setenv("ATTNSCOPE_CACHE", off)
    store_pass(KEYS[0], traces[0])
    assert (cache.cache_folder(), find_pass(KEYS[0]), list_passes()) == (None, None, [])


@pytest.mark.parametrize(
    ("where", "mode", "owner", "kept"),
    [
        ("kept", 0o755, None, True),
        ("kept", 0o777, None, False),  # whoever may rename the folder can put another in its place
        ("kept", 0o775, None, False),
        ("kept", 0o1777, None, True),
        ("", 0o777, None, False),
        ("", 0o755, 12345, False),
        ("", 0o1777, 12345, False),
        ("kept/looks", 0o755, None, False),
    ],
)
def test_nothing_is_cached_in_a_folder_others_may_replace(
    tmp_path, monkeypatch, capsys, traces, where, mode, owner, kept
):
    if owner is not None and os.getuid():
        pytest.skip("only root gives a folder away")
    folder = tmp_path / "mine" / "kept" / "looks"
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(folder.parent))
    private._say.cache_clear()
    store_pass(KEYS[0], traces[0])
    changed = tmp_path / "mine" / where
    changed.chmod(mode)
    if owner is not None:
        os.chown(changed, owner, -1)
    store_pass(KEYS[1], traces[0])
    assert (find_pass(KEYS[1]) is not None) == kept
    assert len(list(folder.iterdir())) == 1 + kept
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (not kept)
    assert all(f": {changed} is open to others" in line for line in said)
