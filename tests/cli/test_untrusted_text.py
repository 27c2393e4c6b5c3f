"""Text from outside: every kind of file, every field, hostile in each; nothing arrives as it was."""

from __future__ import annotations

import json
import re

import pytest

from attnscope.storage.arrays import read, save
from tests.test_text import HOSTILE, steering

SIDES = ("queries", "keys")
NAME = HOSTILE.replace("\udcff", "").replace("/", "")


def planted(field: str, form: str, tmp_path):
    """A file of weights as it is saved here, hostile in one field."""
    token = NAME if field == "token" else "a"
    content = {
        "weights": {"encoder.00": [[[0.5, 0.5], [0.5, 0.5]]]},
        "format": 1,
        "title": NAME if field == "title" else "a title",
        "notes": [NAME] if field == "notes" else [],
        "axes": [{side: [[token, i, i + 1, False, None, None] for i in range(2)] for side in SIDES}],
        "layers": [{"kind": "encoder", "layer": 0, "array": "encoder.00", "axes": 0}],
    }
    first = tmp_path / "first.json"
    first.write_text(json.dumps(content), "utf-8")
    saved = read(first)
    save(saved.kinds, tmp_path / f"a.{form}", title=saved.title.raw, notes=tuple(n.raw for n in saved.notes))
    return tmp_path / f"a.{form}"


@pytest.mark.parametrize("form", ["npz", "safetensors", "json"])
@pytest.mark.parametrize("field", ["title", "notes", "token"])
def test_nothing_hostile_in_a_file_of_weights_reaches_any_output(form, field, tmp_path, run, monkeypatch):
    path = planted(field, form, tmp_path)
    show = ("show", "--from", path, "--head", "L0H0")
    outputs = {"terminal": run(*show).out, "json": run(*show, "--json").out}
    for suffix in ("svg", "pdf", "png"):
        assert run(*show, "-o", tmp_path / f"o.{suffix}").code == 0
    assert run("show", "--from", path, "-o", tmp_path / "o.html").code == 0
    outputs["svg"] = (tmp_path / "o.svg").read_text("utf-8")
    outputs["page"] = (tmp_path / "o.html").read_text("utf-8")
    for name, text in outputs.items():
        assert not steering(text), name
    assert b"owned" not in (tmp_path / "o.pdf").read_bytes().partition(b"/Info")[2]
    assert "<script>alert(1)" not in outputs["page"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run(*show).out
    assert "\x1b]" not in coloured
    assert not steering(re.sub(r"\x1b\[[\d;]*m", "", coloured))


def test_what_is_not_there_is_named_without_its_powers(run):
    for arguments in (("show", "--from", f"{NAME}.npz"), ("stats", "-f", NAME), ("show", "a", "-m", NAME)):
        result = run(*arguments)
        assert result.code in (1, 2)
        assert not steering(result.err), arguments
