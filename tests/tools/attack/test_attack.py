"""A few cases of each kind in this process; ``python -m tests.tools.attack`` tries nine hundred."""

from random import Random

import pytest

from tests.tools.attack.cases import KINDS, make_bases
from tests.tools.attack.judge import unclean, unseen
from tests.tools.fuzz.attempt import attempt
from tests.whole_files import broken


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    made = tmp_path_factory.mktemp("bases")
    make_bases(made)
    return made


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_a_case_ends_in_an_answer_or_in_a_sentence(kind, number, bases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "5")
    case = KINDS[kind][0](Random(f"{kind} {number}"), bases)
    assert attempt(case.arguments) in (0, 1, 2)
    written = [path for path in tmp_path.glob("out*") if path.is_file()]
    assert not [name for name in broken(tmp_path) if name.startswith((".attnscope-", "out"))]
    assert not [wrong for path in written if (wrong := unclean(path))]


@pytest.mark.parametrize("printed", ["\x1b[2J", "\u202e", "\ud800", "\ufffe", "\x9b", "\u2028", "\r"])
def test_what_a_terminal_obeys_is_seen(printed):
    assert unseen(printed.encode("utf-8", "surrogatepass"))
    assert not unseen("a ␛ ‹202E› שלום\n".encode())
