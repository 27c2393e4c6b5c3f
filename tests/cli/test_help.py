"""Help: every command has one, with an example, and it costs nothing."""

import re

import pytest
from typer.main import get_command

from attnscope.cli import app

GROUP = get_command(app)
COMMANDS = GROUP.list_commands(None)


def test_without_a_command_the_help_is_shown(run):
    ran = run()
    for name in COMMANDS:
        assert name in ran.out + ran.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_with_an_example(run, name):
    ran = run(name, "--help")
    assert ran.code == 0
    assert re.search(rf"attnscope {name} ", ran.out)
    assert max(len(line) for line in ran.out.splitlines()) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name):
    for parameter in GROUP.get_command(None, name).params:
        assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_typed_behind_an_option_is_named_in_plain_words(run, name):
    options = re.findall(r"^│[ *]+(--.*)", run(name, "--help").out, re.M)
    assert any(re.search("--help +-h +Show this message", option) for option in options)  # a flag has none
    assert not [option for option in options if re.search(r"<\w+>|<list", option.replace("<image>", ""))]


def test_an_unknown_command_is_wrong_usage(run):
    assert run("shwo").code == 2
