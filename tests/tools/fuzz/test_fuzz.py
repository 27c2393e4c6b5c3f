"""A few inputs of every hostile kind; ``python -m tests.tools.fuzz`` tries thousands."""

import pytest

from tests.tools.fuzz.__main__ import try_kind
from tests.tools.fuzz.kinds import KINDS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_whatever_comes_in_a_result_or_one_sentence_comes_out(kind, monkeypatch, request):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    inputs = 25 if request.config.getoption("whole") else 8
    assert try_kind(kind, inputs=inputs, start=1) >= inputs
