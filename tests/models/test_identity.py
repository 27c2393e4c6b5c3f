"""The identity of a model's files: it changes with every file, and is None if it cannot be known."""

import os

import pytest

from attnscope.models import identity
from attnscope.models.identity import identify_model, identify_programs


@pytest.fixture
def folder(tmp_path):
    """A model, as far as its files go: two small ones, and a large one."""
    folder = tmp_path / "model"
    (folder / "inside").mkdir(parents=True)
    for name, size in (("config.json", 2), ("inside/vocabulary.txt", 50), ("weights.bin", 1000)):
        (folder / name).write_bytes(b"x" * size)
    return folder


def rewrite(path, content):
    """Other bytes, and the time that the file had before."""
    found = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


CHANGES = {
    "a byte of a small file": lambda folder: rewrite(folder / "config.json", b"xy"),
    "a byte of a large file": lambda folder: rewrite(folder / "weights.bin", b"y" * 1000),
    "a name": lambda folder: (folder / "weights.bin").rename(folder / "others.bin"),
    "a file more": lambda folder: (folder / "more.txt").write_bytes(b""),
    "a file less": lambda folder: (folder / "inside" / "vocabulary.txt").unlink(),
    "the place": lambda folder: None,
}


@pytest.mark.parametrize("hashed", [52, 10**6])
@pytest.mark.parametrize("change", CHANGES)
def test_identity_depends_on_every_model_file(folder, change, hashed, monkeypatch):
    monkeypatch.setattr(identity, "HASHED_BYTES", hashed)  # the large file's contents count, or its times
    monkeypatch.setattr(identity, "SETTLED", 0)
    before = identify_model(str(folder))
    assert before is not None
    assert identify_model(str(folder)) == before
    assert [len(each) for each in before[1]] == [3, 3, 6 if hashed == 52 else 3]
    CHANGES[change](folder)
    moved = folder.rename(folder.with_name("moved")) if change == "the place" else folder
    after = identify_model(str(moved))
    assert after is not None
    assert after != before


def adapt(folder):
    (folder / "adapter_config.json").write_text("{}")


def lead_elsewhere(folder):
    (folder / "elsewhere").symlink_to(folder.parent)


def put_a_pipe(folder):
    os.mkfifo(folder / "pipe")


def take_the_config(folder):
    (folder / "config.json").unlink()


UNKNOWN = [adapt, lead_elsewhere, put_a_pipe, take_the_config]


@pytest.mark.parametrize("change", UNKNOWN)
def test_incomplete_folder_has_no_identity(folder, change):
    change(folder)
    assert identify_model(str(folder)) is None


def test_identity_is_none_for_recent_large_or_many_files(folder, monkeypatch):
    monkeypatch.setattr(identity, "HASHED_BYTES", 0)
    monkeypatch.setattr(identity, "SETTLED", 1000)
    assert identify_model(str(folder)) is None
    monkeypatch.setattr(identity, "HASHED_BYTES", 10**6)
    for most in (3, 2):
        monkeypatch.setattr(identity, "MOST_MODEL_FILES", most)
        assert (identify_model(str(folder)) is None) == (most < 3)


def test_identity_of_hub_name_is_that_of_its_revision(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    stored = tmp_path / "models--some--model"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text("abc\n")
    (stored / "snapshots").mkdir()
    folder.rename(stored / "snapshots" / "abc")
    expected = identify_model(str(stored / "snapshots" / "abc"))
    assert identify_model("some/model") == identify_model("some/model", "abc") == expected
    unknown = [("some/model", "v2"), ("other/model", None), ("a/b/c", None), ("file:model", None)]
    assert [identify_model(*each) for each in unknown] == [None] * 4
    assert None not in (identify_model("own"), identify_model("own-causal"))


def test_program_identity_depends_on_library_versions(monkeypatch):
    monkeypatch.setattr(identity, "version", lambda name: "1")
    before = identify_programs()
    assert identify_programs() == before
    for library in ("torch", "transformers", "tokenizers", "numpy"):
        monkeypatch.setattr(identity, "version", lambda name, one=library: "2" if name == one else "1")
        assert identify_programs() != before
