"""Run a model with and without a recording, compare the outputs, and return all maps."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnscope.attention import Site
from attnscope.capture import recording


class CapturedMap(NamedTuple):
    """The weights of some heads of one attention call."""

    site: Site
    weights: Tensor  # [batch, head, query, key]
    allowed: Tensor  # bool, [batch or 1, head or 1 if all share a mask, query, key]
    queries: Any
    keys: Any


class MapObserver:
    """Keeps the whole maps of the heads that ``select`` names for a site, or of all."""

    def __init__(self, select=None):
        self.select, self.maps = select, []

    def observe(self, attention):
        heads = range(attention.heads) if self.select is None else self.select(attention.site)
        if heads:
            weights, allowed = attention.weights(heads), attention.allowed(0, len(attention.queries))
            allowed = allowed if allowed.shape[1] == 1 else allowed[:, list(heads)]
            allowed = allowed.expand(*allowed.shape[:2], *weights.shape[2:])
            kept = attention.site, weights.detach().clone(), allowed.clone()
            self.maps.append(CapturedMap(*kept, attention.queries, attention.keys))


def observe(model, *given, call=None, **named):
    """A pass of a model, or of ``call`` in its place, that went well.  -> (record, maps, output)"""
    keep, outputs = MapObserver(), []
    model.eval()

    def run():
        torch.manual_seed(1)
        outputs.append((model if call is None else call)(*given, **named))

    with torch.inference_mode():
        run()
        with recording(model, [keep], warn=False) as record:
            run()
    plain, output = ([leaf for leaf in tree_leaves(each) if torch.is_tensor(leaf)] for each in outputs)
    assert all(
        torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(output, plain, strict=True)
    )
    assert not record.failures, record.failures
    return record, keep.maps, outputs[1]


def check_kept(model, maps, paths=None):
    """Every map of a module is what it kept of its weights itself; ``paths``: where else it is looked for."""
    expected = {}
    for path, module in model.named_modules():
        if hasattr(module, "kept"):
            kept = module.kept[len(module.kept) // 2 :]  # of the recorded pass
            expected.setdefault((paths or {}).get(path, path), []).extend(kept)
    for path, kept in expected.items():
        shown = [each.weights for each in maps if each.site.name == path]
        assert len(shown) == len(kept), path
        for mine, theirs in zip(shown, kept, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


def check_parts(attention):
    """Some rows of some heads, and what is open to them, are those of the whole map."""
    whole, count = attention.weights(), len(attention.queries)
    opened = attention.allowed(0, count)
    for start, stop in [(0, 1), (3, 8), (4, 4), (count - 1, count), (count, count)]:
        assert torch.equal(attention.rows(start, stop), whole[:, :, start:stop])
        assert torch.equal(attention.rows(start, stop, [1, 0, 1]), whole[:, [1, 0, 1], start:stop])
        assert torch.equal(attention.allowed(start, stop), opened[:, :, start:stop])
