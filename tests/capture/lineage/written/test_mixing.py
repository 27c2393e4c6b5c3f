"""Ways to mix tokens with no weights to show: the module is named, whatever it is called."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import recording

SIZE, HEADS, COUNT = 16, 4, 7


class Stream(nn.Module):
    """Queries, keys and values of some heads; its name says nothing."""

    def __init__(self, way):
        super().__init__()
        self.qkv, self.out, self.way = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE), way
        self.shorter = nn.Linear(COUNT, 3, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(self.way(self, q, k, v).transpose(1, 2).flatten(2))


def sum_before(self, q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(2, keepdim=True).mT)


def sum_before_by_einsum(self, q, k, v):
    return torch.einsum("bhnd,bhde->bhne", q.softmax(-1), torch.einsum("bhnd,bhne->bhde", k.exp(), v))


def run_a_sum(self, q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
    return torch.einsum("bhnd,bhnde->bhne", q, state) / (q * k.cumsum(2)).sum(-1, keepdim=True)


def decay(self, q, k, v):
    far = torch.arange(COUNT)[:, None] - torch.arange(COUNT)
    return (q @ k.mT * (0.9 ** far.clamp(min=0)).tril()) @ v


def weigh_by_cosines(self, q, k, v):
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT / COUNT @ v


def subtract(self, q, k, v):
    first, second = ((a @ b.mT).softmax(-1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True))
    return (first - second) @ v


def shorten(self, q, k, v):
    """Linformer without a softmax."""
    return F.relu(q @ self.shorter(k.mT)) @ self.shorter(v.mT).mT


def take(self, q, k, v):
    highest = (q @ k.mT).argmax(-1, keepdim=True)
    return v.gather(2, highest.expand_as(v))


WAYS = {
    sum_before: "linear attention",
    sum_before_by_einsum: "linear attention",
    run_a_sum: "a running sum",
    decay: "negative",
    weigh_by_cosines: "negative",
    subtract: "negative",
    shorten: "made of several tokens",
    take: "hard attention",
}


def record_of(model):
    """The record of one pass, that went well."""
    torch.manual_seed(0)
    with torch.inference_mode(), recording(model.eval(), warn=False) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert not record.failures
    return record


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_mixes_tokens_without_weights_is_named(way):
    record = record_of(nn.Sequential(Stream(way)))
    assert not record.sites
    assert [(layer.name, WAYS[way] in layer.reason) for layer in record.without_attention] == [("0", True)]


def attend(self, q, k, v):
    return (q @ k.mT).softmax(-1) @ v


class Mapped(Stream):
    """Each text by itself, under ``torch.vmap``."""

    def forward(self, x):
        return torch.vmap(super().forward)(x[:, None])


def test_weights_that_a_map_hides_are_named():
    def weigh(self, q, k, v):
        return (q @ k.mT).sigmoid() @ v

    record = record_of(nn.Sequential(Mapped(weigh)))
    assert not record.sites
    assert ["torch.vmap" in layer.reason for layer in record.without_attention] == [True]


class Layers(nn.Module):
    """Layers in a list, and what each of them adds to the states, one after another."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(Stream(way) for way in ways) for ways in layers)

    def forward(self, x):
        for layer in self.layers:
            for part in layer:
                x = x + part(x)
        return x


def test_each_layer_of_a_list_is_named_by_its_own_way():
    record = record_of(Layers([attend], [decay], [run_a_sum]))
    assert [site.site.name for site in record.sites] == ["layers.0.0"]
    assert [(layer.name, layer.layer) for layer in record.without_attention] == [
        ("layers.1.0", 1),
        ("layers.2.0", 2),
    ]
    assert "negative" in record.without_attention[0].reason
    assert "running sum" in record.without_attention[1].reason


def test_what_mixes_beside_attention_in_one_layer_is_a_note_and_no_layer_without():
    record = record_of(Layers([attend, decay], [attend, decay]))
    assert [site.site.name for site in record.sites] == ["layers.0.0", "layers.1.0"]
    assert not record.without_attention
    (note,) = record.notes
    assert note.startswith("tokens reach each other past the attention that is shown, too: layers.*.*")


class LinearAttention(Stream):
    """Its name says what it is."""


def test_the_name_of_a_class_comes_before_what_it_was_seen_to_do():
    record = record_of(nn.Sequential(LinearAttention(run_a_sum)))
    assert [layer.reason for layer in record.without_attention] == ["linear attention (LinearAttention)"]


def test_products_over_features_and_sums_over_heads_mix_no_tokens():
    def alone(self, q, k, v):
        gates = torch.einsum("bhnd,bgnd->bnhg", q, k)  # of the heads of one token
        return torch.einsum("bnhg,bgnd->bhnd", gates.sigmoid(), v).cumsum(-1)

    record = record_of(nn.Sequential(Stream(alone)))
    assert (record.sites, record.without_attention, record.notes) == ([], [], [])
