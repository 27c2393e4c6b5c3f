"""The README says what happens."""

import ast
import re
import shlex

import pytest
from typer.main import get_command

from attnscope.cli import app
from tests.tools import readme

NUMBER = re.compile(r"\d+(?:\.\d+)?")
SHADE = re.compile(r"[░▒▓█▏▎▍▌▋▊▉]+")


def words(output: str) -> list[str]:
    """An output without what may differ in its last digit from machine to machine."""
    return [" ".join(SHADE.sub(" ", NUMBER.sub("#", line)).split()) for line in output.splitlines()]


def test_there_is_output_to_compare():
    assert len(list(readme.shown())) >= 3


@pytest.mark.parametrize(("command", "expected"), list(readme.shown()), ids=lambda text: text[:60])
def test_a_command_prints_what_the_readme_shows(command, expected):
    assert words(readme.output(command)) == words(expected)


@pytest.mark.parametrize("command", readme.mentioned())
def test_every_option_that_the_readme_mentions_exists(command):
    words = shlex.split(command)
    words = words[words.index("attnscope") + 1 :]
    words = words[: words.index("|")] if "|" in words else words
    parameters = get_command(app).commands[words[0]].params
    known = {name for parameter in parameters for name in parameter.opts}
    assert {word for word in words if re.match("--?[a-z]", word)} <= known


def test_the_files_that_the_readme_names_exist():
    text = readme.README.read_text("utf-8")
    for name in re.findall(r"(?:sample_inputs|\.pictures)/[\w.]+", text):
        assert (readme.ROOT / name).is_file(), name


def test_the_python_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", readme.README.read_text("utf-8"), re.S)
    names: dict[str, object] = {}
    exec(compile(ast.parse(code), "README.md", "exec"), names)
    head = names["head"]
    assert head.heatmap.values.shape == (9, 9)
    assert "(" in head.figures.role.sentence


def test_both_commands_that_set_it_up_are_there_for_the_build_to_take():
    lines = [
        line for line in readme.README.read_text("utf-8").splitlines() if line.startswith("pip install ")
    ]
    assert lines == [
        'pip install torch==2.13.0 . && attnscope show "The cat sat on the mat because it was tired."',
        "pip install torch==2.13.0 -e '.[test]' && pytest",
    ]
