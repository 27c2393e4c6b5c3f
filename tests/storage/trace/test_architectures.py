"""What comes from a trace is what comes from the model: many architectures, every row, every answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.attention import Head
from attnscope.fused.request import SHORTEST
from attnscope.models import Model, ModelInput
from attnscope.models.keeping import keep_trace
from attnscope.models.served import open_file
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.questions.stats import overview
from attnscope.questions.token import one_token
from attnscope.storage.trace import write_trace
from attnscope.storage.trace.layout import allowed_of, pack_mask, traced_rows, unpack_rows
from tests.capture.tiny import FAMILIES, inputs
from tests.tools.coverage.recipes import make

# ALiBi of two makes, one key head for all, windows in some layers, windows of images in a batch, chunks
# that are put at their keys; an image in front of a text; layers without attention; an old encoder
TYPES = ["bloom", "mpt", "falcon", "gemma3_text", "swin", "longformer", "florence2", "jamba", "squeezebert"]


class Given(Model):
    """A module with its inputs."""

    def prepare(self, text, second=None, limit=None):
        raise NotImplementedError


def tiny(name: str) -> tuple[Model, ModelInput]:
    if name in FAMILIES:
        family = FAMILIES[name]
        return Given(name, family.build(), None), ModelInput(inputs(family.inputs), {}, ())
    module, _, given = make(name, [])
    tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
    others = {key: value for key, value in given.items() if key not in tensors}
    return Given(name, module, None), ModelInput(tensors, {}, (), settings=others)


@pytest.fixture(scope="module", params=[*FAMILIES, *TYPES])
def pair(request, tmp_path_factory):
    """A model with its input, and the trace of it, read from its file."""
    model, prepared = tiny(request.param)
    file = tmp_path_factory.mktemp("traces") / f"{request.param}.trace"
    write_trace(keep_trace(model, prepared), file)
    return (model, prepared), open_file(file)


def test_every_row_is_the_models_in_torch_to_the_bit_and_in_numpy_within_a_millionth(pair):
    (model, prepared), traced = pair
    live, kept = _AllHeads(), _AllHeads()
    record, again = model.run(prepared, [live]), traced.run(traced.prepared, [kept])
    assert record == again
    calls = traced.trace.description.calls
    for ours, theirs, call in zip(live.seen, kept.seen, calls, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
        rows, allowed = ours
        size = traced.trace.size(call)[0]
        found = traced_rows(call.rows, traced.trace.arrays, 0, size)
        np.testing.assert_allclose(found, rows.float().numpy(), atol=1e-6)
        opened = allowed_of(call.rows, traced.trace.arrays, 0, size)
        assert (opened == allowed.numpy()).all()
        part = traced_rows(call.rows, traced.trace.arrays, size // 2, size, [call.heads - 1])
        np.testing.assert_allclose(part, rows[:, -1:, size // 2 :].float().numpy(), atol=1e-6)


class _AllHeads:
    """Copies of all weights and masks."""

    def __init__(self):
        self.seen = []

    def observe(self, attention):
        allowed = attention.allowed(0, len(attention.queries))
        self.seen.append((attention.weights().clone(), allowed.clone()))


def test_looks_at_arrays_are_looks_at_tensors_within_a_millionth(pair):
    (model, prepared), traced = pair
    sites = model.run(prepared, []).sites
    long = max(max(seen.queries, seen.keys) for seen in sites) >= SHORTEST
    assert (traced.prepared.arrays is None) == long
    if long:
        return  # tensors are as quick
    heads = [Head(seen.site.layer, 0, seen.site.kind) for seen in sites]
    asked = [Selection(head) for head in heads]
    asked += [Selection(heads[-1], words=True), Selection(heads[-1], token="0")]
    for selection in asked:
        look = _token if selection.token else _head
        ours, theirs = look(model, prepared, selection), look(traced, traced.prepared, selection)
        assert ours[1:] == theirs[1:]
        np.testing.assert_allclose(ours[0], theirs[0], atol=1e-6)
    ours, theirs = (overview(*given, Selection()) for given in ((model, prepared), (traced, traced.prepared)))
    assert ours.grids.keys() == theirs.grids.keys()
    for kind, grid in ours.grids.items():
        for mine, other in zip(grid.layers, theirs.grids[kind].layers, strict=True):
            np.testing.assert_allclose(mine.values, other.values, atol=1e-6)
            assert np.array_equal(*np.broadcast_arrays(mine.masked, other.masked))


def _head(model, prepared, selection):
    seen = one_head(model, prepared, selection)
    weights = seen.heatmap.weights
    return weights.values, weights.queries, np.broadcast_to(weights.allowed, weights.values.shape).tolist()


def _token(model, prepared, selection):
    focus = one_token(model, prepared, selection)
    sides = [side for side in (focus.looks_at, focus.looked_at_by) if side is not None]
    weights = [weight for side in sides for weight in sorted(bar.weight for bar in side.bars)]
    return weights, focus.label, focus.title


BAND = np.abs(np.subtract.outer(np.arange(9), np.arange(9))) < 3
HOLES = np.random.default_rng(0).random((9, 9)) < 0.5
NOTHING = np.zeros((9, 9), bool)


MASKS = {
    "behind": (np.tril(np.ones((9, 9), bool)), "runs"),
    "ahead": (np.triu(np.ones((9, 9), bool)), "runs"),
    "band": (BAND, "runs"),
    "nothing": (NOTHING, "runs"),
    "a closed row": (np.where(np.arange(9)[:, None] == 4, NOTHING, BAND), "runs"),
    "holes": (HOLES, "bits"),
    "all but a band": (~BAND, "bits"),
}


@pytest.mark.parametrize(("opened", "form"), MASKS.values(), ids=MASKS)
def test_a_mask_whose_rows_are_runs_is_kept_as_their_ends_and_any_other_as_bits(opened, form) -> None:
    held: dict[str, np.ndarray] = {}
    mask = pack_mask(opened[None, None], lambda name, array: held.update({name: array}) or name)
    assert (mask.form, mask.keys) == (form, 9)
    for start, stop in ((0, 9), (2, 5), (8, 9)):
        np.testing.assert_array_equal(unpack_rows(mask, held, start, stop)[0, 0], opened[start:stop])
