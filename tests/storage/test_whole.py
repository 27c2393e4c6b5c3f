"""Files that appear whole or not at all."""

from __future__ import annotations

import os

import pytest

from attnscope.errors import OutputError
from attnscope.storage.whole import write_whole


def test_a_file_is_replaced_whole_with_usual_permissions(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    (tmp_path / "b.txt").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "b.txt").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match=r"cannot write .*a.txt: No space left on device"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.txt"]
