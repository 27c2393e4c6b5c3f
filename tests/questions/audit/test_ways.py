"""An audit says by what a module mixes tokens, from the function that was seen to mix them."""

import pytest
import torch
from torch import nn

from tests.questions.audit.tiny import IDS, audited


class Reader(nn.Module):
    """Attention, and beside it one more way in which tokens meet."""

    def __init__(self, meet):
        super().__init__()
        self.embed, self.grams = nn.Embedding(99, 16), nn.Embedding(99, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.join, self.behind = nn.Linear(32, 16), nn.Linear(16, 16)
        self.meet = meet

    def forward(self, ids):
        states = self.embed(ids)
        states = states + self.attend(states, states, states, need_weights=False)[0]
        return self.behind(self.meet(self, ids, states))


def side_by_side(m, ids, states):
    return m.join(torch.cat([states, states.roll(1, 1)], -1))


def some_word(m, ids, states):
    return states[:, int(ids.sum()) % ids.shape[1]]


def neighbour(m, ids, states):
    return states + states.roll(1, 1)


def gated(m, ids, states):
    return states * torch.sigmoid(states.roll(1, 1))


def mean_of_words(m, ids, states):
    words = (ids > 7)[..., None]
    return (states * words).sum(1) / words.sum(1)


def pairs_of_ids(m, ids, states):
    return m.grams((ids + 7 * ids.roll(1, 1)) % 99)


def mean_by_a_product(m, ids, states):
    return torch.full((1, 1, ids.shape[1]), 1 / ids.shape[1]) @ states


WAYS = {
    side_by_side: ("join (Linear)", "a matrix product"),
    some_word: ("the model itself (Reader)", "a choice among tokens"),
    neighbour: ("the model itself (Reader)", "a sum"),
    gated: ("the model itself (Reader)", "a product"),
    mean_of_words: ("the model itself (Reader)", "pooling"),
    pairs_of_ids: ("grams (Embedding)", "ids that are made of several tokens"),
    mean_by_a_product: ("the model itself (Reader)", "a matrix product"),
}


@pytest.mark.parametrize("meet", WAYS, ids=lambda meet: meet.__name__)
def test_the_function_that_mixes_tokens_gives_the_way_its_name(meet):
    where, way = WAYS[meet]
    assert audited(Reader(meet), IDS).sentences == (f"{where} mixes tokens by {way} as well",)


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
