"""The public names: they change on purpose only."""

import inspect

import pytest

import attnscope

FACE = ["AttnscopeError", "Head", "Reader", "Run", "TextSums", "callback", "load", "measure_texts", "open"]
FACE += ["record", "watch", "wrap"]


def test_public_names_are_listed_and_documented():
    assert set(attnscope.__all__) == set(dir(attnscope)) == {"__version__", *FACE}
    assert all(inspect.getdoc(getattr(attnscope, name)) for name in FACE)
    said = "no attribute 'show': it has AttnscopeError, Head, Reader, Run, TextSums, callback, load"
    with pytest.raises(AttributeError, match=said):
        attnscope.show  # noqa: B018
