"""Old spellings are wrong usage, and a sentence says what became of them."""

import pytest

from attnscope.cli.retired import RETIRED


@pytest.mark.parametrize("option", [name for name in RETIRED if name.startswith("--")])
def test_a_retired_option_is_answered_with_its_sentence(run, option):
    ran = run("show", "the cat", option)
    assert ran.code == 2
    assert RETIRED[option] in " ".join(ran.err.replace("│", " ").split())
    assert "No such option" not in ran.err
