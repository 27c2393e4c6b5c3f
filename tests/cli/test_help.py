"""Help: every command has one, with an example, and it costs nothing."""

import re

import pytest

from attnscope.cli.commands import NAMES, find_command


def test_without_a_command_the_help_is_shown(run):
    ran = run()
    for name in NAMES:
        assert name in ran.out + ran.err


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_a_help_of_one_page_with_an_example(run, name):
    ran = run(name, "--help")
    text, examples = ran.out.split("Examples:\n")
    assert ran.code == 0
    assert re.search(rf"attnscope {name} ", examples)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert ran.out.count("\n") <= 50


@pytest.mark.parametrize("name", NAMES)
def test_help_all_has_every_option_and_its_text_word_for_word(run, name):
    printed = " ".join(run(name, "--help-all").out.split())
    for word in find_command(name).words:
        assert " ".join(" ".join(word.row).split()) in printed
    assert "--quiet" in printed
    assert "--verbose" in printed


def test_the_list_of_commands_begins_with_those_that_people_use_most(run):
    printed = run("--help").out
    names = re.findall("^  ([a-z]+) ", printed, re.M)
    assert names[:5] == ["show", "browse", "stats", "find", "compare"]
    assert printed.index("More:") > printed.index("  check ")
    assert {*NAMES} <= {*names}
    summaries = printed.partition("Options:")[0]
    assert not re.search("^ {9}", summaries, re.M)  # a line each


@pytest.mark.parametrize("name", NAMES)
def test_every_option_says_what_it_does(name):
    for parameter in find_command(name).words:
        assert parameter.row[1], f"{name} {parameter.name}"


def test_brackets_in_a_help_are_literal(run):
    assert "pip install 'attnscope[browse]'" in " ".join(run("browse", "--help").out.split())


def test_an_unknown_command_is_wrong_usage(run):
    assert run("shwo").code == 2
