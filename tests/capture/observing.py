"""One pass of a model as it is and one that is recorded: their output is the same, and all maps are kept."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnscope.attention import Site
from attnscope.capture import recording


class Kept(NamedTuple):
    """The weights of some heads of one attention call."""

    site: Site
    weights: Tensor  # [batch, head, query, key]
    allowed: Tensor  # bool, [batch or 1, head or 1 if all share a mask, query, key]
    queries: Any
    keys: Any


class Keep:
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
            self.maps.append(Kept(*kept, attention.queries, attention.keys))


def observe(model, *given, call=None, **named):
    """A pass of a model, or of ``call`` in its place, that went well.  -> (record, maps, output)"""
    keep, outputs = Keep(), []
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
    assert not record.failures
    return record, keep.maps, outputs[1]
