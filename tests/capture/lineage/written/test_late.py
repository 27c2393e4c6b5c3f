"""Softmaxes that are divided after they met their values, against the softmax of the same scores."""

import pytest
import torch
from torch import nn

from attnscope.capture import Keep, recording

SIZE, HEADS, COUNT = 16, 4, 7


class Stream(nn.Module):
    """Queries, keys and values of some heads, and the softmax of their scores; its name says nothing."""

    def __init__(self, way, causal=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.way, self.closed = way, torch.ones(COUNT, COUNT).triu(1).bool() & causal

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT / 2).masked_fill(self.closed, -torch.inf)
        self.kept = [scores.softmax(-1).clone()]

        def score(rows=slice(None), keys=slice(None)):
            part = q[:, :, rows] @ k[:, :, keys].mT / 2
            return part.masked_fill(self.closed[rows, keys], -torch.inf)

        return self.out(self.way(score, v).transpose(1, 2).flatten(2))


def divide_late(score, v):
    powers = score().exp()
    return (powers @ v) / powers.sum(-1, keepdim=True)


def divide_by_a_column_of_ones(score, v):
    mixed = score().exp() @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return mixed[..., :-1] / mixed[..., -1:]


def divide_when_moved(score, v):
    powers = score().exp()
    mixed, total = (powers @ v).transpose(1, 2), powers.sum(-1).transpose(1, 2)
    return mixed.div(total[..., None]).transpose(1, 2)


def go_online(score, v, size=3, rows=slice(None)):
    """Running sums over parts of the keys, scaled anew whenever a higher score comes."""
    highest = torch.full((*v[:, :, rows].shape[:-1], 1), -torch.inf)
    total, mixed = torch.zeros_like(highest), torch.zeros_like(v[:, :, rows])
    for start in range(0, COUNT, size):
        part = score(rows, slice(start, start + size))
        higher = torch.maximum(highest, part.amax(-1, keepdim=True))
        powers, scale = (part - higher).exp(), (highest - higher).exp()
        total = total * scale + powers.sum(-1, keepdim=True)
        mixed = mixed * scale + powers @ v[:, :, start : start + size]
        highest = higher
    return mixed / total


def go_online_in_place(score, v):
    highest = torch.full((*v.shape[:-1], 1), -torch.inf)
    total, mixed = torch.zeros_like(highest), torch.zeros_like(v)
    for start in range(0, COUNT, 3):
        part = score(keys=slice(start, start + 3))
        higher = torch.maximum(highest, part.amax(-1, keepdim=True))
        powers, scale = (part - higher).exp(), (highest - higher).exp()
        total.mul_(scale).add_(powers.sum(-1, keepdim=True))
        mixed.mul_(scale).add_(powers @ v[:, :, start : start + 3])
        highest = higher
    return mixed.div_(total)


def go_online_by_rows(score, v):
    return torch.cat([go_online(score, v, 2, slice(at, at + 4)) for at in range(0, COUNT, 4)], 2)


def write_tiles(score, v):
    """The first FlashAttention: parts of the keys outside, a buffer of what is normalized so far."""
    mixed, total = torch.zeros_like(v), torch.zeros((*v.shape[:-1], 1))
    highest = torch.full_like(total, -torch.inf)
    for start in range(0, COUNT, 3):
        keys = slice(start, start + 3)
        for at in range(0, COUNT, 4):
            rows = slice(at, at + 4)
            part = score(rows, keys)
            top = part.amax(-1, keepdim=True).clamp(min=-1e9)
            powers = (part - top).exp()
            before, sums, done = highest[:, :, rows], total[:, :, rows], mixed[:, :, rows]
            higher = torch.maximum(before, top)
            old, new = (before - higher).exp() * sums, (top - higher).exp()
            both = old + new * powers.sum(-1, keepdim=True)
            mixed[:, :, rows] = (old * done + new * (powers @ v[:, :, keys])) / both
            highest[:, :, rows], total[:, :, rows] = higher, both
    return mixed


WAYS = [
    divide_late,
    divide_by_a_column_of_ones,
    divide_when_moved,
    go_online,
    go_online_in_place,
    go_online_by_rows,
    write_tiles,
    lambda score, v: gate_after(score, v),
]


def recorded(module):
    """What a recording of one module says and keeps, on two texts."""
    torch.manual_seed(0)
    model, keep = nn.Sequential(module).eval(), Keep(lambda site: range(HEADS))
    states = torch.randn(2, COUNT, SIZE)
    with torch.inference_mode():
        plain = model(states)
        with recording(model, [keep], warn=False) as record:
            assert torch.equal(model(states), plain)
    assert not record.failures
    return record, keep.maps


def gate_after(score, v):
    return go_online(score, v) * v.mean(-1, keepdim=True).sigmoid()


def in_half_precision(score, v):
    powers = score().exp()
    return (powers.half() @ v.half()).float() / powers.sum(-1, keepdim=True)


def test_types_that_change_between_change_no_weights():
    _, (kept,) = recorded(module := Stream(in_half_precision))
    torch.testing.assert_close(kept.weights.float(), module.kept[0], atol=1e-3, rtol=1e-2)


def divide_by_one_more(score, v):
    powers = score().exp()
    return (powers @ v) / (1 + powers.sum(-1, keepdim=True))


def test_a_softmax_of_one_more_that_is_divided_late_has_rows_that_sum_to_less_than_one():
    record, (kept,) = recorded(module := Stream(divide_by_one_more))
    sums = kept.weights.sum(-1, keepdim=True)
    assert bool((sums < 1).all())
    torch.testing.assert_close(kept.weights / sums, module.kept[0])
    assert record.sites[0].difference < 1e-6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_divided_after_it_met_the_values_is_shown_as_the_softmax_that_it_is(way, causal):
    record, (kept,) = recorded(module := Stream(way, causal))
    torch.testing.assert_close(kept.weights, module.kept[0])
    (site,) = record.sites
    assert (site.site.kind, site.offset, site.source) == ("decoder" if causal else "encoder", 0, "module")
    assert site.difference < 1e-6
    if causal:
        assert not kept.allowed.expand(2, HEADS, -1, -1).triu(1).any()


def spoil(score, v):
    """Half of what an online softmax gave is replaced by what nobody follows."""
    mixed = go_online(score, v)
    return mixed.sin()


def scale_by_rows_and_lose(score, v):
    powers = score().exp()
    mixed = (powers @ v) * powers.sum(-1, keepdim=True).rsqrt()
    return mixed + v.roll(1, 2)


def overwrite(score, v):
    powers = score().exp()
    mixed = powers @ v
    powers.fill_(0.5)
    return mixed


def subtract_another(score, v):
    powers = score().exp()
    scaled = powers.relu() * score().sigmoid()
    return (powers @ v) / powers.sum(-1, keepdim=True) + (scaled @ v.roll(1, 2)) / 2


@pytest.mark.parametrize("way", [scale_by_rows_and_lose, overwrite, subtract_another])
def test_weights_that_nobody_knows_in_the_end_are_named_and_not_shown(way):
    record, maps = recorded(Stream(way))
    assert not maps
    assert [layer.name for layer in record.without_attention] == ["0"]
    assert "scaled row by row" in record.without_attention[0].reason


def test_what_comes_after_the_division_changes_no_weights():
    _, (kept,) = recorded(module := Stream(spoil))
    torch.testing.assert_close(kept.weights, module.kept[0])


def gate(score, v):
    return score().sigmoid() @ v * v.sigmoid()


def add(score, v):
    return score().sigmoid() @ v + v


def count_twice(score, v):
    mixed = score().sigmoid() @ v
    return mixed + mixed * mixed.new_tensor(2.0)


def cut_rows(score, v):
    part = score().sigmoid() @ v
    return torch.cat([part[:, :, :3], part[:, :, 3:]], 2)


def normalize(score, v):
    """A norm of what came out divides no weights."""
    mixed = score().sigmoid() @ v
    return mixed * mixed.pow(2).mean(-1, keepdim=True).rsqrt()


def gate_rows(score, v):
    return (score().sigmoid() @ v) * v.mean(-1, keepdim=True).sigmoid()


@pytest.mark.parametrize("way", [gate, add, count_twice, cut_rows, normalize, gate_rows])
def test_weights_that_nobody_divides_are_shown_as_they_met_the_values(way):
    module = Stream(way)
    record, (kept,) = recorded(module)
    scores = module.kept[0].log()  # but for a number of each row, which a sigmoid is not free of
    torch.testing.assert_close(kept.weights.logit().diff(dim=-1), scores.diff(dim=-1), atol=1e-4, rtol=1e-4)
    assert [site.difference < 1e-6 for site in record.sites] == [True]
