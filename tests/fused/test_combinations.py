"""Random combinations: no figure is off by more than 1e-4 (``tests.tools.combinations`` runs hundreds)."""

import pytest

from attnscope.fused import weigh as plan
from tests.fused.combinations import Verdict, check


@pytest.mark.parametrize("part", range(4))
def test_the_fused_pass_and_the_rows_agree_with_brute_force(part, monkeypatch):
    for name, size in (("ROWS", 24), ("KEYS", 32)):
        monkeypatch.setattr(plan, name, size)
    verdict = Verdict()
    for seed in range(8 * part, 8 * part + 8):
        check(seed, verdict)
    assert verdict.figures > 500
