"""What mixes tokens behind attention is named, also where no residual carries a token past that attention."""

import pytest
import torch
from torch import nn

from tests.capture import modules
from tests.questions.audit.tiny import IDS, audited


class Behind(nn.Module):
    """Attention, and something behind it; no residual."""

    def __init__(self, attend, behind):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attend = nn.Embedding(99, 16), attend()
        self.norm, self.behind = nn.LayerNorm(16), behind()

    def forward(self, ids):
        return self.behind(self.norm(self.mixed(self.embed(ids))))

    def mixed(self, states):
        if isinstance(self.attend, modules.SequenceFirst):
            return self.attend(states.transpose(0, 1))[0].transpose(0, 1)
        if isinstance(self.attend, nn.MultiheadAttention):
            return self.attend(states, states, states)[0]
        mixed = self.attend(states)[0]
        return mixed.flatten(1, 2).transpose(1, 2).flatten(2) if mixed.ndim == 5 else mixed


class Turned(nn.Module):
    """A layer over positions instead of features."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, states):
        return self.layer(states.mT).mT


class Shift(nn.Module):
    def forward(self, states):
        return states + states.roll(1, 1)


class Windows(nn.Module):
    """Attention in windows of four tokens, which begin ``shift`` tokens later."""

    def __init__(self, shift):
        super().__init__()
        self.qkv, self.shift = nn.Linear(16, 48), shift

    def forward(self, states):
        q, k, v = self.qkv(states.roll(-self.shift, 1).unflatten(1, (-1, 4))).chunk(3, -1)
        return ((q @ k.mT).softmax(-1) @ v).flatten(1, 2).roll(self.shift, 1)


ATTENDING = {
    "kernel": lambda: nn.MultiheadAttention(16, 2, batch_first=True),
    "softmax": lambda: modules.Softmaxed(modules.SOFTMAXES["torch.softmax"]),
    "einsum": modules.SequenceFirst,
    "single heads": modules.ListedHeads,
    "layers": modules.ListedLayers,
    "grouped": lambda: modules.GroupedByAxis("einsum"),
}
MIXING = {
    "convolution": (lambda: Turned(nn.Conv1d(16, 16, 3, padding=1)), "a convolution"),
    "layer": (lambda: Turned(nn.Linear(13, 13)), "a matrix product"),
    "sum": (Shift, "a sum"),
    None: (lambda: nn.Linear(16, 16), None),
}


@pytest.mark.parametrize(
    ("attending", "mixing"),
    [*((attending, "convolution") for attending in ATTENDING)]
    + [("softmax", mixing) for mixing in ("layer", "sum", None)],
)
def test_what_mixes_behind_attention_is_named_and_nothing_else(attending, mixing):
    behind, way = MIXING[mixing]
    seen = audited(Behind(ATTENDING[attending], behind), IDS)
    assert seen.sites
    assert [(mixer.path, mixer.way) for mixer in seen.mixers] == ([("behind", way)] if way else [])


@pytest.mark.parametrize("behind", [False, True])
def test_windows_that_begin_elsewhere_in_each_layer_do_not_mix_by_that(behind):
    torch.manual_seed(0)
    layers = [
        Windows(0),
        Windows(2),
        Turned(nn.Conv1d(16, 16, 3, padding=1)) if behind else nn.Linear(16, 16),
    ]
    seen = audited(nn.Sequential(nn.Linear(16, 16), *layers), torch.randn(1, 16, 16))
    assert [mixer.path for mixer in seen.mixers] == ["3"] * behind


def test_a_sparse_product_is_a_way_to_mix_and_no_failure():
    class Graph(nn.Module):
        """Attention, and sums along edges that are kept sparse."""

        def __init__(self):
            super().__init__()
            self.attend = modules.ListedHeads()
            self.edges = torch.eye(13).roll(1, 0).add(torch.eye(13)).to_sparse()

        def forward(self, states):
            states = states + self.attend(states)[0]
            return torch.sparse.mm(self.edges, states[0])[None]

    seen = audited(nn.Sequential(Graph()), torch.randn(1, 13, 16))
    assert [(mixer.path, mixer.way) for mixer in seen.mixers] == [("0", "a matrix product")]
