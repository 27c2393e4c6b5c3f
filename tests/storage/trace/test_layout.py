"""What a trace keeps of a mask: the same mask, in the smaller form."""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.storage.trace.layout import pack_mask, unpack_rows

BAND = np.abs(np.subtract.outer(np.arange(9), np.arange(9))) < 3
HOLES = np.random.default_rng(0).random((9, 9)) < 0.5
NOTHING = np.zeros((9, 9), bool)


@pytest.mark.parametrize(
    ("opened", "form"),
    [
        (np.tril(np.ones((9, 9), bool)), "runs"),
        (np.triu(np.ones((9, 9), bool)), "runs"),
        (BAND, "runs"),
        (NOTHING, "runs"),
        (np.where(np.arange(9)[:, None] == 4, NOTHING, BAND), "runs"),
        (HOLES, "bits"),
        (~BAND, "bits"),
    ],
    ids=["behind", "ahead", "band", "nothing", "a closed row", "holes", "all but a band"],
)
def test_a_mask_whose_rows_are_runs_is_kept_as_their_ends_and_any_other_as_bits(opened, form) -> None:
    held: dict[str, np.ndarray] = {}

    def hold(name: str, array: np.ndarray) -> str:
        held[name] = array
        return name

    mask = pack_mask(opened[None, None], hold)
    assert (mask.form, mask.keys) == (form, 9)
    for start, stop in ((0, 9), (2, 5), (8, 9)):
        np.testing.assert_array_equal(unpack_rows(mask, held, start, stop)[0, 0], opened[start:stop])
