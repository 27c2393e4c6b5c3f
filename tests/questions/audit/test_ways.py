"""An audit says by what tokens mix beside and behind attention: by the function that was seen to mix them."""

from collections import UserDict

import pytest
import torch
from torch import nn

from attnscope.questions.audit_pass import find_tensors, with_tensors
from tests.capture import modules
from tests.questions.audit.tiny import IDS, audited


class Reader(nn.Module):
    """Attention, and beside it one more way in which tokens meet."""

    def __init__(self, meet):
        super().__init__()
        self.embed, self.grams = nn.Embedding(99, 16), nn.Embedding(99, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.join, self.behind = nn.Linear(32, 16), nn.Linear(16, 16)
        self.recur = nn.GRU(16, 16, batch_first=True)
        self.meet = meet

    def forward(self, ids):
        states = self.embed(ids)
        states = states + self.attend(states, states, states, need_weights=False)[0]
        return self.behind(self.meet(self, ids, states))


def mean_of_words(m, ids, states):
    words = (ids > 7)[..., None]
    return (states * words).sum(1) / words.sum(1)


def mean_by_a_product(m, ids, states):
    return torch.full((1, 1, ids.shape[1]), 1 / ids.shape[1]) @ states


SELF = "the model itself (Reader)"
WAYS = {
    "recurrence": (lambda m, ids, states: m.recur(states)[0], "recur (GRU)", "a recurrence"),
    "mean": (lambda m, ids, states: states.mean(1), SELF, "pooling"),
    "side by side": (
        lambda m, ids, states: m.join(torch.cat([states, states.roll(1, 1)], -1)),
        "join (Linear)",
        "a matrix product",
    ),
    "some word": (
        lambda m, ids, states: states[:, int(ids.sum()) % ids.shape[1]],
        SELF,
        "a choice among tokens",
    ),
    "neighbour": (lambda m, ids, states: states + states.roll(1, 1), SELF, "a sum"),
    "gated": (lambda m, ids, states: states * torch.sigmoid(states.roll(1, 1)), SELF, "a product"),
    "mean of words": (mean_of_words, SELF, "pooling"),
    "pairs of ids": (
        lambda m, ids, states: m.grams((ids + 7 * ids.roll(1, 1)) % 99),
        "grams (Embedding)",
        "ids that are made of several tokens",
    ),
    "mean by a product": (mean_by_a_product, SELF, "a matrix product"),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_function_that_mixes_tokens_gives_the_way_its_name(name):
    meet, where, way = WAYS[name]
    assert audited(Reader(meet), IDS).sentences == (f"{where} mixes tokens by {way} as well",)


class Parts(tuple):
    """A tuple that torch does not know."""


def test_tensors_in_classes_of_a_model_are_found_and_put_as_in_lists():
    first, second, third = torch.rand(3, 2)
    value = Parts([first, UserDict({"states": [second]}), 7])
    assert [id(each) for each in find_tensors(value)] == [id(first), id(second)]
    put = with_tensors(value, iter([third, first]))
    assert type(put) is Parts
    assert [id(each) for each in find_tensors(put)] == [id(third), id(first)]


def test_functions_that_only_move_numbers_mix_nothing():
    turned = audited(Reader(lambda m, ids, states: states.roll(1, 1).flip(1)), IDS)
    assert turned.complete, turned.sentences


def test_a_number_for_a_whole_batch_is_no_failure():
    class Total(nn.Module):
        def forward(self, states):
            return states.sum(), states

    seen = audited(nn.Sequential(nn.Linear(16, 16), Total()), torch.randn(1, 5, 16))
    assert seen.sentences == ("layer 1, * (Total), mixes tokens by pooling as well",)


@pytest.mark.parametrize("name", ["merge_sizes", "timesteps", "t_cond"])
def test_what_is_said_of_all_tokens_is_no_token(name):
    class Scaled(Reader):
        def forward(self, input_ids, **named):
            return super().forward(input_ids) * named[name].float().sum()

    seen = audited(Scaled(lambda m, ids, states: states), input_ids=IDS, **{name: torch.tensor([2, 3])})
    assert seen.complete, seen.sentences


class Routed(nn.Module):
    """Tokens are sorted by their experts, which run on one stretch each, and put back into their order."""

    def __init__(self):
        super().__init__()
        self.router, self.sort = nn.Linear(16, 3), Sort()
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, states):
        flat = states.flatten(0, 1)
        sorted_states, order, counts = self.sort(flat, self.router(flat))
        parts = sorted_states.split(counts)
        made = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return torch.zeros_like(flat).index_add(0, order, made).view_as(states)


class Sort(nn.Module):
    """States in the order of their experts."""

    def forward(self, states, scores):
        chosen = scores.argmax(-1)
        order = chosen.argsort(stable=True)
        return states[order], order, torch.bincount(chosen, minlength=3).tolist()


def test_tokens_that_a_module_sorts_and_puts_back_are_not_mixed():
    reader = Reader(lambda m, ids, states: m.routed(states))
    torch.manual_seed(0)
    reader.routed = Routed()
    seen = audited(reader, IDS)
    assert seen.complete, seen.sentences


def test_tokens_that_a_module_sorts_and_leaves_so_are_mixed():
    reader = Reader(lambda m, ids, states: m.routed(states[0], m.behind(states[0])[:, :3])[0])
    reader.routed = Sort()
    assert audited(reader, IDS).sentences == ("routed (Sort) mixes tokens by a choice among tokens as well",)


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


WIDE = 64


class Layer(nn.Linear):
    """A layer of each token alone."""


class Leak(nn.Module):
    """Adds to the last token a little of what two others hold, each in a feature of its own, and sums it."""

    def __init__(self, much, little):
        super().__init__()
        self.shares = nn.Buffer(torch.full((2, WIDE), little))
        self.shares[0, 0] = self.shares[1, 1] = much
        self.layer = Layer(WIDE, WIDE, bias=False)
        nn.init.constant_(self.layer.weight, 1 / WIDE)

    def forward(self, x):
        mixed = x.clone()
        mixed[:, -1] += (x[:, :2].abs().sum(-1, keepdim=True) * self.shares).sum(1)
        return self.layer(mixed)


class Leaking(nn.Module):
    """Attention, and a leak behind it."""

    def __init__(self, much, little):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.leak = nn.Embedding(99, WIDE), Leak(much, little)
        self.attend = nn.MultiheadAttention(WIDE, 4, batch_first=True)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.leak(x + self.attend(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(("much", "little", "blamed"), [(2e-6, 2e-6, []), (1e-4, 1e-7, ["leak"])])
def test_what_is_less_than_rounding_mixes_nothing_though_a_layer_sums_it(much, little, blamed):
    assert [mixer.path for mixer in audited(Leaking(much, little)).mixers] == blamed
