"""One pass of a model as it is and one that is recorded: their output is the same, and all maps are kept."""

import torch
from torch.utils._pytree import tree_leaves

from attnscope.capture import Keep, recording


class KeepAll:
    """Keeps every head of every call."""

    def __init__(self):
        self.maps = []

    def observe(self, attention):
        keep = Keep(lambda site: range(attention.heads))
        keep.observe(attention)
        self.maps += keep.maps


def observe(model, *given, call=None, **named):
    """A pass of a model, or of ``call`` in its place, that went well.  -> (record, maps, output)"""
    keep, outputs = KeepAll(), []
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
