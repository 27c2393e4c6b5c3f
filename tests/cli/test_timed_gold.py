"""``attnscope find --gold`` with timed words: what it prints and refuses."""

import json

import jsonschema
import pytest

from tests.analysis.gold.test_timed import timed_sounds
from tests.models import speech


@pytest.mark.slow
def test_the_command_prints_a_table_and_says_what_to_align_by(run, tmp_path):
    folder, gold = speech.whisper(tmp_path / "whisper"), timed_sounds(tmp_path)
    ran = run("find", "--gold", gold, "-m", folder)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].endswith("4 heads · 4 sounds")
    assert lines[1].split() == ["head", "right", "off", "weight", "words"]
    assert any(line.startswith("line ") for line in lines)
    assert all(len(line) <= 80 for line in lines if "attnscope align" not in line)
    answer = json.loads(run("find", "--gold", gold, "-m", folder, "--json", "--held-out").out)
    jsonschema.Draft202012Validator(json.loads(run("schema", "find").out)).validate(answer)
    table = run("find", "--gold", gold, "-m", folder, "--csv", "--held-out").out.splitlines()
    assert len(table) == 1 + len(answer["timed"]) == 5
    assert run("find", "--gold", gold, "-m", folder, "--relation", "x").code == 2
