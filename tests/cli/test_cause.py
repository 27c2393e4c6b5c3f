"""The commands that change a pass: cut and patch."""

import json

import pytest

TEXT = "The cat sat on the mat"


@pytest.mark.parametrize(
    "command", [("cut", "on -> cat"), ("patch", "--with-text", "The dog sat on the mat")]
)
def test_both_commands_print_a_map_a_table_json_and_csv(run, tmp_path, command):
    name, *more = command
    asked = [name, *more[:1], TEXT] if name == "cut" else [name, TEXT, *more]
    asked += ["-m", "own-causal"]
    shown = run(*asked)
    assert shown.code == 0
    assert "at once" in shown.out
    answer = json.loads(run(*asked, "--json").out)
    assert answer["schema"] == f"urn:attnscope:{name}:1"
    assert len(answer["heads"]) == 12
    lines = run(*asked, "--csv").out.splitlines()
    assert lines[0] == "kind,layer,head,effect,score,divergence"
    assert len(lines) == 13
    assert run(*asked, "-o", tmp_path / "map.png").code == 0
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["cut", TEXT], "name an edge"),
        (["cut", "on -> cat", TEXT, "another"], "give one text"),
        (["patch", TEXT], "give the other text"),
        (["patch", TEXT, "--with-text", "The dog sat", "-m", "own-causal"], "needs the same number"),
        (["patch", TEXT, "--with-text", TEXT, "--fast", "--what", "q"], "--fast estimates"),
        (["cut", "on -> cat", TEXT, "--head", "H3"], "is no head"),
    ],
)
def test_wrong_usage_is_a_sentence(run, asked, sentence):
    answer = run(*asked)
    assert answer.code != 0
    assert sentence in " ".join(answer.err.split())
