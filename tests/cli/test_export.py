"""``attnscope export`` as a user meets it."""

import json

import click
import pytest

from attnscope.cli.options import parse_numbers

TEXT = "The cat sat on the mat."


def test_a_folder_is_filled_and_a_line_says_so(run, tmp_path):
    ran = run("export", TEXT, "-o", tmp_path / "out", "--layers", "1-2", "--heads", "0,3", "--dpi", "40")
    assert (ran.code, ran.out) == (0, "")
    assert f"saved 7 files and manifest.json in {tmp_path / 'out'}" in ran.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "L01.png", "L01H00.png", "L01H03.png", "L02.png", "L02H00.png", "L02H03.png",
        "manifest.json", "overview.png",
    ]  # fmt: skip


def test_the_manifest_has_the_command_which_does_the_same_again(run, tmp_path):
    arguments = ("export", TEXT, "-o", tmp_path, "--layers", "0", "--heads", "0", "--dpi", "40")
    run(*arguments)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    command = json.loads(first["manifest.json"])["command"]
    assert command == f"attnscope export --layers 0 --heads 0 -o {tmp_path} --dpi 40.0 '{TEXT}'"
    assert run(*arguments, "--force").code == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


def test_one_token_is_drawn_in_each_head_as_show_draws_it(run, tmp_path):
    arguments = ("--token", "cat", "--dpi", "40")
    assert (
        run("export", TEXT, *arguments, "-o", tmp_path / "out", "--layers", "1", "--heads", "0-2").code == 0
    )
    names = [f"L01H0{head}.png" for head in range(3)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*names, "manifest.json"]
    run("show", TEXT, *arguments, "--head", "L1H2", "-o", tmp_path / "shown.png")
    assert (tmp_path / "out" / "L01H02.png").read_bytes() == (tmp_path / "shown.png").read_bytes()


@pytest.mark.parametrize(
    ("spelling", "numbers"), [("0-3,7", (0, 1, 2, 3, 7)), ("7, 2,2", (2, 7)), ("05", (5,)), (None, None)]
)
def test_numbers_and_ranges(spelling, numbers):
    assert parse_numbers(spelling, "--layers") == numbers


@pytest.mark.parametrize("spelling", ["", "L5H3", "1-", "-1", "3-1", "1,,2", "0-99999999", "٣", "1.5"])
def test_what_is_no_list_of_numbers(spelling):
    with pytest.raises(click.BadParameter, match="write numbers and ranges, like 0-3,7"):
        parse_numbers(spelling, "--layers")


def test_a_token_is_drawn_with_the_keys_that_hold_a_share_alone(run, tmp_path):
    arguments = (TEXT, "--token", "cat", "--layers", "2", "--heads", "1", "--format", "svg")
    drawn = {}
    for name, more in {"all": (), "few": ("--keep-mass", "0.5")}.items():
        assert run("export", *arguments, *more, "-o", tmp_path / name).code == 0
        drawn[name] = (tmp_path / name / "L02H01.svg").read_text("utf-8")
    assert drawn["all"] != drawn["few"]
    command = json.loads((tmp_path / "few" / "manifest.json").read_text("utf-8"))["command"]
    assert "--keep-mass 0.5" in command
