"""The compiled step: the same weights and sums as torch's, kept in a private folder or not at all."""

import os
import stat
from pathlib import Path

import pytest
import torch

from attnscope.fused.compiled import load_compiled
from attnscope.fused.weigh import LOWEST, weigh_tile, weigh_tile_compiled
from attnscope.measures.block import LANES, Block
from attnscope.private import VARIABLE

pytestmark = pytest.mark.parametrize("step", ["compiled"], indirect=True, scope="package")


def both_ways(scores):
    """What the two ways write: weights, highest, mass, moment."""
    made = []
    for way in (weigh_tile, weigh_tile_compiled):
        made.append([torch.empty_like(scores), *torch.full((3, len(scores)), 7.0, dtype=scores.dtype)])
        way(scores.clone(), *made[-1], True, LOWEST)
    return made


@pytest.mark.parametrize("spread", [0.1, 4, 300])
@pytest.mark.parametrize("keys", [1, 3, 16, 31, 512, 517])
def test_it_agrees_with_torchs_operations(keys, spread):
    torch.manual_seed(keys)
    for wanted, found in zip(*both_ways(spread * torch.randn(9, keys)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    for wanted, found in zip(*both_ways(torch.randn(4, keys, dtype=torch.float64)), strict=True):
        assert torch.equal(found, wanted)  # which torch computes


@pytest.mark.parametrize("place", [0, 5, 39])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_so(broken, place):
    scores = torch.randn(3, 40)
    scores[1, place] = broken
    _, _, mass, moment = both_ways(scores)[1]
    assert mass.isfinite().tolist() == moment.isfinite().tolist() == [True, False, True]


def swept(rows, factors, places, monkeypatch):
    """What a block's sums are by machine code and, in float64, by torch; with what rows alone tell."""
    monkeypatch.setattr("attnscope.measures.block.SWEPT", 1)
    blocks = [
        Block(each, torch.ones(rows.shape[1:], dtype=torch.bool)[None]) for each in (rows, rows.double())
    ]
    sums = [block.sums(factors, places) for block in blocks]
    assert ["entropy" in vars(block) for block in blocks] == [True, False]
    return [[*each, b.entropy, b.largest, b.total] for b, each in zip(blocks, sums, strict=True)]


@pytest.mark.parametrize(("texts", "known"), [(3, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("keys", [1, 7, 16, 33, 200])
def test_figures_of_rows_agree_with_torchs_operations(texts, known, keys, monkeypatch):
    generator = torch.Generator().manual_seed(keys)
    rows = (
        torch.randn(2 * texts, 4, 9, keys, generator=generator).mul(5).softmax(-1)[::2, 1:, 3:]
    )  # in pieces
    rows = rows.masked_fill(rows < 1e-4, 0) if keys == 33 else rows
    factors = torch.zeros(known, 6, 2, -(-keys // LANES) * LANES)
    factors[..., :keys] = torch.randn(known, 6, 2, keys, generator=generator)
    places = torch.randint(-1, keys, (3, 6), generator=generator)
    for found, wanted in zip(*swept(rows, factors, places, monkeypatch), strict=True):
        torch.testing.assert_close(found, wanted.float(), rtol=2e-6, atol=2e-6)


def test_a_weight_that_is_no_number_spoils_its_own_row_alone(monkeypatch):
    rows = torch.full((1, 1, 3, 40), 1 / 40)
    rows[..., 1, 7] = float("nan")
    places = torch.tensor([[7, 7, 7], [0, 0, -1]])
    found, wanted = swept(rows, torch.ones(1, 3, 1, 48), places, monkeypatch)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.isnan().equal(theirs.isnan())
        torch.testing.assert_close(mine.nan_to_num(9), theirs.nan_to_num(9).float())


def test_the_library_is_kept_and_private():
    kept = list(Path(os.environ[VARIABLE], "compiled").iterdir())
    assert [path.suffix for path in kept] == [".so"]
    assert not stat.S_IMODE(kept[0].stat().st_mode) & 0o077
    before = kept[0].stat().st_mtime_ns
    load_compiled.cache_clear()
    assert load_compiled()
    assert kept[0].stat().st_mtime_ns == before


@pytest.mark.parametrize("case", ["off", "open to others", "no compiler", "a compiler that fails", "a link"])
def test_where_it_cannot_be_kept_or_made_nothing_is_loaded(case, tmp_path, monkeypatch):
    known = next(Path(os.environ[VARIABLE], "compiled").iterdir())
    monkeypatch.setenv(VARIABLE, "off" if case == "off" else str(tmp_path))
    folder = tmp_path / "compiled"
    folder.mkdir(mode=0o700)
    if case == "open to others":
        folder.chmod(0o777)
    if case == "a link":
        (folder / known.name).symlink_to(known)
    if case == "no compiler":
        monkeypatch.setenv("CXX", "no-such-compiler")
    if case == "a compiler that fails":
        (tmp_path / "c++").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "c++").chmod(0o700)
        monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    load_compiled.cache_clear()
    assert not load_compiled()
    assert all(path.is_symlink() for path in folder.iterdir())
    monkeypatch.undo()
    load_compiled.cache_clear()
    assert load_compiled()
