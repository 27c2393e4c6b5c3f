"""Figures from the fused pass equal those from all rows, baselines and counts included."""

import numpy as np
import pytest
import torch

from attnscope.attention import Attention, AttentionCall, HeldRows, Site, Token
from attnscope.fused import weigh as plan
from attnscope.fused.fused_pass import FusedPass
from attnscope.measures import DEFAULT, MEASURES, Measurement, fused_request

from .reference import random_text

SIZE, LENGTH, HEADS = 8, 97, 3
ASKED = "max_logit", "sink_rate", "window=3+9", "window=0+1", "window=40+70"
"""Beside those that are measured anyway."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("ROWS", 32), ("KEYS", 32)):
        monkeypatch.setattr(plan, name, size)


class Unreadable(HeldRows):
    """Rows that must not be read."""

    def rows(self, start: int, stop: int, heads: object) -> torch.Tensor:
        raise AssertionError("the statistics were not used")


def mask_of(name: str, batch: int) -> torch.Tensor:
    row, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    masks = {
        "causal": key <= row,
        "whole": torch.ones(LENGTH, LENGTH, dtype=torch.bool),
        "window": (key <= row) & (row - key < 12),
        "one key": key == row,
        "ahead": (key > row) & (key < row + 5) | (key == LENGTH - 1) & (row == LENGTH - 1),
    }
    if name == "padded":
        padded = torch.ones(batch, 1, LENGTH, LENGTH, dtype=torch.bool)
        padded[0, ..., -9:] = False
        return padded
    return masks[name][None, None]


def both_ways(
    name: str,
    texts: list[tuple[Token, ...]],
    names: tuple[str, ...] = DEFAULT,
    asked: list[tuple[Token, ...]] | None = None,
    offset: int = 0,
) -> tuple[Measurement, Measurement]:
    """Measurement from all rows, and from statistics alone."""
    generator = torch.Generator().manual_seed(5)
    shape = len(texts), HEADS, LENGTH, SIZE
    query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
    mask = mask_of(name, len(texts))
    weights = ((query @ key.mT) * SIZE**-0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    request = fused_request(tuple(name for name in names if MEASURES[name].form.fused), asked or texts)
    assert request is not None
    with torch.inference_mode():
        call = AttentionCall(query, key, value, SIZE**-0.5, masks=(mask,))
        _, statistics = FusedPass(request, shortest=1).attend(call)
    measured = []
    for read, known in ((HeldRows(weights, mask, call), None), (Unreadable(weights, mask, call), statistics)):
        axis = texts[0]
        site = Site("layer.0", 0, "encoder", 0)
        attention = Attention(
            site,
            "recomputed",
            "sdpa",
            len(texts),
            HEADS,
            HEADS,
            axis,
            axis,
            offset,
            torch.float32,
            read,
            known,
        )
        one = Measurement(names)
        one.label({"encoder": (texts, texts)})
        one.observe(attention)
        measured.append(one)
    return measured[0], measured[1]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["causal", "whole", "window", "one key", "ahead", "padded"])
def test_figures_baselines_counts_and_roles_are_the_same(name: str, batch: int) -> None:
    rng = np.random.default_rng(2)
    from_rows, streamed = both_ways(
        name, [random_text(rng, LENGTH) for _ in range(batch)], (*DEFAULT, *ASKED)
    )
    for one, other in zip(from_rows.figures(), streamed.figures(), strict=True):
        assert one.absent == other.absent
        assert list(one.figures) == list(other.figures)
        for measure, left in one.figures.items():
            right = other.figures[measure]
            scale = LENGTH if measure in ("distance", "offset", "effective_keys") else 1.0
            assert (left.rows, left.texts) == (right.rows, right.texts), measure
            assert left.value == pytest.approx(right.value, abs=1e-5 * scale), measure
            assert left.baseline == pytest.approx(right.baseline, abs=1e-9 * scale), measure
            assert (left.error is None) == (right.error is None)
            if left.error is not None and right.error is not None:
                assert left.error == pytest.approx(right.error, abs=1e-5 * scale)
        assert one.role is not None or name == "one key"
        if one.role is not None and other.role is not None:
            assert one.role.name == other.role.name
            assert one.role.score == pytest.approx(other.role.score, abs=1e-5)


def test_measures_that_the_fused_pass_cannot_tell_are_known_before_it_runs() -> None:
    text = random_text(np.random.default_rng(3), LENGTH)
    assert fused_request(DEFAULT, [text]) is not None
    assert fused_request((*DEFAULT, "coverage90"), [text]) is None
    with pytest.raises(AssertionError, match="statistics were not used"):
        both_ways("causal", [text], ("coverage90",))


def test_a_pair_of_segments_is_left_to_the_rows_where_segments_are_measured() -> None:
    pair = random_text(np.random.default_rng(3), LENGTH, pair=True)
    assert fused_request(("segment",), [pair]) is None
    assert fused_request(("entropy", "special"), [pair]) is not None
    both_ways("whole", [pair], ("entropy", "special"))


def test_pairs_of_another_text_are_never_believed() -> None:
    rng = np.random.default_rng(3)
    text, other = random_text(rng, LENGTH), random_text(rng, LENGTH)
    both_ways("causal", [text], ("duplicate",), asked=[text])
    with pytest.raises(AssertionError, match="statistics were not used"):
        both_ways("causal", [text], ("duplicate",), asked=[other])


def test_statistics_for_other_positions_are_not_used() -> None:
    text = random_text(np.random.default_rng(3), LENGTH)
    with pytest.raises(AssertionError, match="statistics were not used"):
        both_ways("causal", [text], ("entropy",), offset=4)
