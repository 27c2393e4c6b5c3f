"""Models that write into used tensors: every call is measured with its own values."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from attnscope.attention import Token
from attnscope.capture import FUSED, recording
from attnscope.capture.observers import SharedRows
from attnscope.capture.rows.kernels import sdpa_call
from attnscope.fused.fused_pass import FusedPass
from attnscope.fused.runs import digest
from attnscope.measures import DEFAULT, Measurement, fused_request
from tests.capture.modules import Kernel
from tests.capture.observing import MapObserver
from tests.fused.combinations import brute_force
from tests.fused.test_fused_pass import call_of, check, request_of

HEADS, LENGTH, WIDTH = 4, 131, 8


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
            (opened,) = call_of(name).masks
            if self.additive:
                self.mask.zero_().masked_fill_(~opened, -torch.inf)
                if self.own_heads:  # rows of a later head that no sample would meet
                    self.mask[:, 2, 40:60] += 0.1 * number
            else:
                self.mask.copy_(opened)
            for buffer in (self.query, self.key, self.value):
                buffer.copy_(torch.randn(buffer.shape, generator=noise))
            given = self.query, self.key, self.value, self.mask
            self.held.append(sdpa_call([each.clone() for each in given], {}, 1))
            self.layers[number](*given)
        return self.value


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("own_heads", [False, True])
@pytest.mark.parametrize("additive", [False, True])
def test_layers_sharing_buffers_are_measured_separately(additive, own_heads, fused):
    model = Rewriting(additive, own_heads)
    ids = torch.zeros(1, LENGTH, dtype=torch.int64)
    for call in range(2):  # the same tensors again, with other numbers in them
        ids.fill_(call)
        model.held.clear()
        text = tuple(Token("w", call) for _ in range(LENGTH))
        measured, keep = Measurement(DEFAULT), MapObserver()
        measured.label({"encoder": ([text], [text]), "decoder": ([text], [text])})
        engine = FusedPass(fused_request(measured.measures, [text], None), shortest=1) if fused else None
        observers = [SharedRows([measured])] if fused else [measured, keep]
        with torch.inference_mode(), recording(model, observers, {}, engine) as record:
            model(ids)
        assert [site.kernel == FUSED for site in record.sites] == [fused] * len(model.names)
        weights = [brute_force(held) for held in model.held]
        assert len(measured.scores()) == HEADS * len(model.names)
        for head in measured.scores():
            rows = weights[head.site.layer][0, head.head]
            rows = rows[(rows > 0).sum(-1) > 1]  # those that have a choice
            entropy = float(torch.special.entr(rows).sum(-1).mean())
            assert head.scores["entropy"].value == pytest.approx(entropy, abs=1e-4), head.name
        for kept, wanted in zip(keep.maps, weights, strict=False):
            assert torch.allclose(kept.weights.double(), wanted, atol=1e-6)


def test_rewritten_sink_is_read_again():
    engine, sinks = FusedPass(request_of(), shortest=1), torch.zeros(HEADS)
    call = call_of(sinks=sinks)
    for level in (0.0, 3.0, -2.0):
        sinks.fill_(level)
        check(engine.attend(call), call)


SIZE = 300
CAUSAL = torch.ones(SIZE, SIZE, dtype=torch.bool).tril().repeat(1, HEADS, 1, 1)
MASKS = {
    "bool": CAUSAL,
    **{
        str(dtype): torch.zeros(CAUSAL.shape, dtype=dtype).masked_fill(~CAUSAL, -torch.inf)
        for dtype in (torch.float32, torch.bfloat16)
    },
}


def other_cells(mask):
    """One cell of any head and row is another one."""
    for number in range(200):
        changed = mask.clone()
        place = 0, number % HEADS, (37 * number) % SIZE, (101 * number) % SIZE
        changed[place] = not changed[place] if mask.dtype == torch.bool else number + 1.0
        yield changed


def other_places(mask):
    """The same cells stand at other places."""
    yield from (mask.flip(1).flip(2), mask.flip(3), mask.transpose(2, 3))
    yield from (mask.roll(by, axis) for by, axis in ((1, 2), (1, 3), (2, 3), (64, 2)))
    yield torch.cat([mask[:, :2], mask[:, 2:].roll(8, 3)], 1)


def other_signs(bias):
    """Pairs of sign bits cancel in a sum of products modulo 2⁶⁴."""
    for number in range(100):
        changed = bias.clone()
        changed.view(-1)[[2 * number + 1, 2 * number + 3 + 2 * SIZE]] *= -1
        yield changed


def other_bytes(data):
    """The first byte, the last one or one between is another one."""
    for place in {0, len(data) // 2, len(data) - 1} if len(data) else ():
        changed = data.clone()
        changed[place] = 200
        yield changed


BIAS = torch.randn(1, HEADS, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
ROW = torch.arange(SIZE).float().expand(1, 1, SIZE, SIZE)
DIFFERENT = [
    *((mask, others) for mask in MASKS.values() for others in (other_cells, other_places)),
    (BIAS, other_signs),
    (ROW, lambda row: [row.clone()]),  # which repeats itself no more
    *(
        (torch.zeros(count, dtype=torch.uint8), other_bytes)
        for count in (0, 1, 7, 8, 9, 65_536 * 8 - 1, 65_536 * 8, 65_536 * 8 + 1)
    ),
]


@pytest.mark.parametrize(("tensor", "others"), DIFFERENT)
def test_digest_is_equal_only_for_equal_tensors(tensor, others):
    made = [digest(tensor), *map(digest, others(tensor))]
    assert len(set(made)) == len(made)
    assert digest(deepcopy(tensor)) == made[0]
