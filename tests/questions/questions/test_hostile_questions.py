"""Regular expressions that ask for all time, or that are none: a sentence each."""

import pytest

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.questions import parts
from attnscope.questions.find import parse_questions


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$"])
def test_an_expression_that_tries_every_way_is_stopped(pattern, monkeypatch):
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "0.2")
    with pytest.raises(SelectionError, match="takes longer than"):
        parts.TextPart(f"/{pattern}/").tokens((Token("a" * 60 + "b", 0),))


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a{1,99999999999}", "too large"),
        ("(?:" * 5000 + ")" * 5000, "nested too deep"),
        ("[", "not a regular expression"),
    ],
)
def test_what_is_no_expression_is_said_in_a_sentence(pattern, says):
    with pytest.raises(SelectionError, match=says):
        parse_questions(f"/{pattern}/ -> *")


def test_a_phrase_of_special_tokens_alone_is_nowhere():
    axis = (Token("[CLS]", 0, special=True), Token("cat", 1, word=0), Token("[SEP]", 2, special=True))
    assert parts.TextPart("[SE P]").tokens(axis) == ()
    assert parts.TextPart('"[ SEP ]"').tokens(axis) == ()
