"""What users may rely on: a name leaves or joins this list on purpose only."""

import inspect

import pytest

import attnscope

FACE = ["AttnscopeError", "Head", "Reader", "Run", "callback", "load", "open", "record", "watch", "wrap"]


def test_the_public_face_is_this():
    assert set(attnscope.__all__) == {"__version__", *FACE}
    assert set(dir(attnscope)) == {"__version__", *FACE}


@pytest.mark.parametrize("name", FACE)
def test_every_public_name_says_what_it_is(name):
    assert inspect.getdoc(getattr(attnscope, name))


def test_what_is_not_there_is_met_with_what_is():
    with pytest.raises(
        AttributeError, match="no attribute 'show': it has AttnscopeError, Head, Reader, Run, callback, load"
    ):
        attnscope.show  # noqa: B018
