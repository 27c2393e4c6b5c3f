"""Statistics of the fused pass are used where they tell every measure, and rows are read elsewhere.

What they tell equals brute force: see ``tests/fused/test_fused_pass.py``.
"""

import numpy as np
import pytest
import torch

from attnscope.attention import Attention, AttentionCall, HeldRows, Site
from attnscope.fused.fused_pass import FusedPass
from attnscope.measures import DEFAULT, MEASURES, Measurement, fused_request
from tests.measures.reference import random_text

SIZE, LENGTH, HEADS = 8, 97, 3


class Unreadable(HeldRows):
    """Rows that must not be read."""

    def rows(self, start, stop, heads):
        raise AssertionError("the statistics were not used")


def measure(text, names, asked=None, offset=0):
    """Measure a causal call from its statistics alone, those that ``asked``, another text, has."""
    query, key, value = torch.randn(3, 1, HEADS, LENGTH, SIZE)
    request = fused_request([name for name in names if MEASURES[name].form.fused], [asked or text])
    call = AttentionCall(query, key, value, SIZE**-0.5, diagonal=0)
    with torch.inference_mode():
        _, statistics = FusedPass(request, shortest=1).attend(call)
    shape = 1, HEADS, HEADS, text, text, offset, torch.float32
    read = Unreadable(query @ key.mT)
    measured = Measurement(names)
    measured.label({"encoder": ([text], [text])})
    measured.observe(
        Attention(Site("layer", 0, "encoder", 0), "recomputed", "sdpa", *shape, read, statistics)
    )


@pytest.fixture
def text():
    return random_text(np.random.default_rng(3), LENGTH)


def test_measures_that_the_fused_pass_cannot_tell_are_known_before_it_runs(text):
    assert fused_request(DEFAULT, [text]) is not None
    assert fused_request((*DEFAULT, "coverage90"), [text]) is None
    with pytest.raises(AssertionError, match="statistics were not used"):
        measure(text, ("coverage90",))


def test_a_pair_of_segments_is_left_to_the_rows_where_segments_are_measured():
    pair = random_text(np.random.default_rng(3), LENGTH, pair=True)
    assert fused_request(("segment",), [pair]) is None
    assert fused_request(("entropy", "special"), [pair]) is not None
    measure(pair, ("entropy", "special"))


def test_pairs_of_another_text_are_never_believed(text):
    measure(text, ("duplicate",))
    with pytest.raises(AssertionError, match="statistics were not used"):
        measure(text, ("duplicate",), asked=random_text(np.random.default_rng(4), LENGTH))


def test_statistics_for_other_positions_are_not_used(text):
    with pytest.raises(AssertionError, match="statistics were not used"):
        measure(text, ("entropy",), offset=4)
