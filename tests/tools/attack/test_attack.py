"""A few cases of each kind; ``python -m tests.tools.attack`` tries nineteen hundred."""

import pytest

from tests.tools.attack.__main__ import run_case, unseen
from tests.tools.attack.cases import KINDS, make_bases


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    made = tmp_path_factory.mktemp("bases")
    make_bases(made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_case_ends_in_an_answer_or_in_a_sentence(kind, bases, tmp_path, monkeypatch, request):
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "5")
    numbers = range(25 if request.config.getoption("whole") else 6)
    found = {number: run_case(kind, number, bases, tmp_path) for number in numbers}
    wrong = {number: said for number, said in found.items() if said[0] not in ("answer", "sentence")}
    assert wrong == {}


@pytest.mark.parametrize("printed", ["\x1b[2J", "\u202e", "\ud800", "\ufffe", "\x9b", "\u2028", "\r"])
def test_what_a_terminal_obeys_is_seen(printed):
    assert unseen(printed.encode("utf-8", "surrogatepass"))
    assert not unseen("a ␛ ‹202E› שלום\n".encode())
