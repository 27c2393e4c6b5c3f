"""Models that write into tensors which they used before: every call is measured on what it held then."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.attention import Token
from attnscope.capture import FUSED, recording
from attnscope.capture.observers import SharedRows
from attnscope.fused.fused_pass import FusedPass
from attnscope.fused.runs import digest
from attnscope.measures import DEFAULT, Measurement, fused_request
from tests.capture.observing import Keep
from tests.fused.test_fused_pass import call_of, check, inputs, mask_of, request_of, weights_of

HEADS, LENGTH, WIDTH = 4, 131, 8


class Kernel(nn.Module):
    def forward(self, *given):
        return F.scaled_dot_product_attention(*given)


class Rewriting(nn.Module):
    """Layers that share one mask, one query and one key, and write the next layer's numbers into them."""

    names = ("causal", "window", "both ways", "causal")

    def __init__(self, additive, own_heads):
        super().__init__()
        self.layers = nn.ModuleList(Kernel() for _ in self.names)
        self.additive, self.own_heads = additive, own_heads
        dtype = torch.float32 if additive else torch.bool
        self.mask = torch.zeros(1, HEADS if own_heads else 1, LENGTH, LENGTH, dtype=dtype)
        self.query, self.key, self.value = (torch.empty(1, HEADS, LENGTH, WIDTH) for _ in range(3))
        self.held = []

    def forward(self, ids):
        noise = torch.Generator().manual_seed(int(ids.sum()))
        for number, name in enumerate(self.names):
            opened = mask_of(name, LENGTH, LENGTH)
            if self.additive:
                self.mask.zero_().masked_fill_(~opened, -torch.inf)
                if self.own_heads:  # rows of a later head that no sample would meet
                    self.mask[:, 2, 40:60] += 0.1 * number
            else:
                self.mask.copy_(opened)
            for buffer in (self.query, self.key, self.value):
                buffer.copy_(torch.randn(buffer.shape, generator=noise))
            self.held.append([each.clone() for each in (self.query, self.key, self.mask)])
            self.layers[number](self.query, self.key, self.value, self.mask)
        return self.value


def weigh(query, key, mask):
    """The plain softmax, in float64."""
    scores = query.double() @ key.double().mT / math.sqrt(WIDTH)
    opened = mask if mask.dtype == torch.bool else mask > -1e9
    bias = 0 if mask.dtype == torch.bool else mask.double().masked_fill(~opened, 0)
    return (scores + bias).masked_fill(~opened, -torch.inf).softmax(-1)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("own_heads", [False, True])
@pytest.mark.parametrize("additive", [False, True])
def test_layers_that_share_their_buffers_are_measured_on_their_own(additive, own_heads, fused):
    model = Rewriting(additive, own_heads)
    ids = torch.zeros(1, LENGTH, dtype=torch.int64)
    for call in range(2):  # the same tensors again, with other numbers in them
        ids.fill_(call)
        model.held.clear()
        text = tuple(Token("w", call) for _ in range(LENGTH))
        measured, keep = Measurement(DEFAULT), Keep()
        measured.label({"encoder": ([text], [text]), "decoder": ([text], [text])})
        engine = FusedPass(fused_request(measured.measures, [text], None), shortest=1) if fused else None
        observers = [SharedRows([measured])] if fused else [measured, keep]
        with torch.inference_mode(), recording(model, observers, {}, engine) as record:
            model(ids)
        assert len(record.sites) == len(model.names)
        assert {site.kernel == FUSED for site in record.sites} == {fused}
        weights = [weigh(*held) for held in model.held]
        assert len(measured.figures()) == HEADS * len(model.names)
        for head in measured.figures():
            rows = weights[head.site.layer][0, head.head]
            rows = rows[(rows > 0).sum(-1) > 1]  # those that have a choice
            entropy = float(torch.special.entr(rows).sum(-1).mean())
            assert head.figures["entropy"].value == pytest.approx(entropy, abs=1e-4), head.name
        for kept, wanted in zip(keep.maps, weights, strict=False):
            assert torch.allclose(kept.weights.double(), wanted, atol=1e-6)


def test_a_sink_that_is_rewritten_between_two_calls_is_read_anew():
    query, key, value = inputs(LENGTH, LENGTH)
    engine, sinks = FusedPass(request_of(), shortest=1), torch.zeros(HEADS)
    for level in (0.0, 3.0, -2.0):
        sinks.fill_(level)
        call = replace(call_of(query, key, value, is_causal=True), sinks=sinks)
        weights = weights_of(query, key, mask_of("causal", LENGTH, LENGTH), sinks=sinks)
        check(*engine.attend(call), weights, value)


SIZE = 300


def masks():
    causal = torch.ones(SIZE, SIZE, dtype=torch.bool).tril().expand(1, HEADS, SIZE, SIZE)
    return {
        "bool": causal.clone(),
        "float32": torch.zeros(causal.shape).masked_fill(~causal, -torch.inf),
        "bfloat16": torch.zeros(causal.shape, dtype=torch.bfloat16).masked_fill(~causal, -torch.inf),
    }


@pytest.mark.parametrize("dtype", masks())
def test_one_cell_of_any_head_and_row_tells_two_masks_apart(dtype):
    mask = masks()[dtype]
    seen = {digest(mask)}
    for number in range(200):
        head, row, key = number % HEADS, (37 * number) % SIZE, (101 * number) % SIZE
        changed = mask.clone()
        changed[0, head, row, key] = not changed[0, head, row, key] if dtype == "bool" else number + 1.0
        seen.add(digest(changed))
    assert len(seen) == 201
    assert digest(mask.clone()) in seen


@pytest.mark.parametrize("dtype", masks())
def test_the_same_cells_at_other_places_are_another_mask(dtype):
    mask = masks()[dtype]
    moved = [
        mask.flip(1).flip(2),
        mask.flip(3),
        mask.roll(1, 2),
        mask.roll(1, 3),
        mask.roll(2, 3),
        mask.roll(64, 2),
        mask.transpose(2, 3),
        torch.cat([mask[:, :2], mask[:, 2:].roll(8, 3)], 1),
    ]
    assert len({digest(each) for each in (mask, *moved)}) == len(moved) + 1


def test_signs_alone_tell_two_biases_apart():
    """Pairs of sign bits cancel in a sum of products modulo 2⁶⁴."""
    bias = torch.randn(1, HEADS, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    seen = {digest(bias)}
    for number in range(100):
        changed = bias.clone()
        changed.view(-1)[[2 * number + 1, 2 * number + 3 + 2 * SIZE]] *= -1
        seen.add(digest(changed))
    assert len(seen) == 101


def test_what_repeats_itself_is_read_once_and_differs_from_what_does_not():
    row = torch.arange(SIZE).float()
    assert digest(row.expand(1, 1, SIZE, SIZE)) == digest(row.clone().expand(1, 1, SIZE, SIZE))
    assert digest(row.expand(1, 1, SIZE, SIZE)) != digest(row.expand(1, 1, SIZE, SIZE).clone())


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 65_536 * 8 - 1, 65_536 * 8, 65_536 * 8 + 1])
def test_any_number_of_bytes_counts_to_the_last(count):
    data = torch.zeros(count, dtype=torch.uint8)
    seen = {digest(data)}
    for place in (0, count // 2, count - 1)[: min(count, 3)]:
        changed = data.clone()
        changed[place] = 200
        seen.add(digest(changed))
    assert len(seen) == 1 + len({0, count // 2, count - 1} if count else ())
