"""Labels apply to each axis that they fit; keys that are the same for every input have their own names."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnscope

LABELS = ["a", "b", "c", "d", "ef", "g"]


class Remembers(nn.Module):
    """Attention over what it is given and two learned keys, in front or behind, by a kernel or by hand."""

    def __init__(self, front=True, by_hand=False):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(4))
        self.memory = nn.ParameterList(torch.randn(1, 4, 2, 4) for _ in range(2))
        self.front, self.by_hand = front, by_hand

    def forward(self, x):
        x = self.into(x)
        query, *states = (
            each(x).unflatten(-1, (4, 4)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        learned = [each.expand(len(x), -1, -1, -1) for each in self.memory]
        sides = zip(learned, states, strict=True)
        key, value = self.keys = [torch.cat(pair if self.front else pair[::-1], 2) for pair in sides]
        if self.by_hand:
            return (query @ key.mT / 2).softmax(-1) @ value
        return F.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize("labels", [LABELS, None], ids=["labels", "numbers"])
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("front", [True, False])
def test_learned_keys_are_named_and_token_keys_stay_labelled(front, by_hand, labels):
    model = Remembers(front, by_hand).eval()
    held = []
    for seed in range(2):  # the oracle: which keys another input changes
        with torch.inference_mode(), attnscope.record(model, labels) as run:
            model(torch.randn(1, 6, 16, generator=torch.manual_seed(seed)))
        held.append(model.keys[0][0, 0])
    fixed = (held[0] == held[1]).all(-1).tolist()
    head, own = run.head("L0H1"), labels or [str(number) for number in range(6)]
    assert [name.startswith("[memory") for name in head.keys] == fixed
    assert [name for name in head.keys if not name.startswith("[")] == own
    assert list(head.queries) == own
    start = 2 if front else 0
    assert head.figures["self"].value == pytest.approx(head.weights.diagonal(start)[:6].mean(), abs=1e-6)


@pytest.mark.parametrize(("bias", "zero"), [(True, True), (True, False), (False, True)])
def test_keys_added_by_torch_are_named_after_the_text(bias, zero):
    attend = nn.MultiheadAttention(16, 4, add_bias_kv=bias, add_zero_attn=zero, batch_first=True).eval()
    x = torch.randn(1, 6, 16, generator=torch.manual_seed(0))
    with torch.inference_mode(), attnscope.record(attend, LABELS) as run:
        _, expected = attend(x, x, x, average_attn_weights=False)
    head = run.head("L0H2")
    assert list(head.keys) == [*LABELS, *["[bias]"] * bias, *["[zero]"] * zero]
    assert list(head.queries) == LABELS
    np.testing.assert_allclose(head.weights, expected[0, 2], atol=1e-6)


class Latents(nn.Module):
    """Learned queries look at the input, then at each other, as in a Perceiver."""

    def __init__(self, count):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, count, 16))
        self.across, self.among = (nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(2))

    def forward(self, x):
        read = self.across(self.latents, x, x)[0]
        return self.among(read, read, read)[0]


def test_labels_apply_only_to_axes_of_their_length():
    model = Latents(3).eval()
    with torch.inference_mode(), attnscope.record(model, LABELS) as run:
        model(torch.randn(1, 6, 16))
    across, among = (run.head(each) for each in (run.heads[0], run.heads[-1]))
    assert (across.queries, across.keys) == (("0", "1", "2"), tuple(LABELS))
    assert (among.queries, among.keys) == (("0", "1", "2"), ("0", "1", "2"))
    assert run.notes == ()
    with torch.inference_mode(), attnscope.record(model, LABELS[:4]) as run:
        model(torch.randn(1, 6, 16))
    assert run.head(run.heads[0]).keys == tuple(map(str, range(6)))
    assert "the 4 labels fit no axis: there are 3 or 6 positions" in run.notes
