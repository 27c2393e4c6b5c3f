"""Weighting and flow never hold the weights of all heads between all tokens at once."""

from typing import get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.weighting import with_weighting
from attnscope.questions.flow import Method, follow_flow
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.scores import Weighting
from tests.models.folders import gpt2

HEADS, TOKENS = 16, 256


class _Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made meanwhile, by any kernel."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // each.element_size())
        return made


@pytest.mark.sweep(2)
@pytest.mark.parametrize("way", [*get_args(Weighting), *get_args(Method)])
def test_no_tensor_holds_all_heads_and_token_pairs(way, tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.questions.flow.BLOCK", 1 << 16)  # so that a short text has several blocks
    # and its rows are not computed once for all who look
    monkeypatch.setattr("attnscope.capture.rows.scores.SHORT", 1 << 16)
    sizes = {"n_embd": 2 * HEADS, "n_head": HEADS, "n_layer": 2, "n_positions": TOKENS}
    model = load(gpt2(tmp_path, **sizes), predicting=True)
    text = model.prepare("The cat sat on the mat. " * TOKENS, limit=Limit(TOKENS, truncate=True))
    assert len(text.tokens) == TOKENS
    with _Largest() as largest:
        if way in get_args(Weighting):
            one_head(model if way == "raw" else with_weighting(model, way), text, "L1H1")
        else:
            follow_flow(model, text, way, Selection(), token="9")
    assert TOKENS**2 <= largest.numbers < HEADS * TOKENS**2  # the scores of one head are some maps
