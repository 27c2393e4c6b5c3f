"""Ways to mix tokens with no weights of a softmax to show: the module is named, whatever it is called."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import Keep, recording
from attnscope.capture.placing import mixing as why
from attnscope.capture.placing.without_attention import POOLED
from attnscope.capture.rows.weighing import MAPPED
from tests.capture.tiny import FAMILIES, inputs

TEXTS, SIZE, HEADS, COUNT = 2, 16, 4, 7
EACH = SIZE // HEADS


class Stream(nn.Module):
    """Queries, keys and values of some heads; its name says nothing."""

    def __init__(self, way):
        super().__init__()
        self.qkv, self.out, self.way = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE), way
        self.shorter, self.table = nn.Linear(COUNT, 3, bias=False), nn.Parameter(torch.randn(HEADS, EACH))
        self.one, self.many, self.both = nn.Linear(EACH, 1), nn.Linear(EACH, 3), nn.Linear(2 * EACH, EACH)
        self.dense = nn.Linear(EACH, COUNT)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = self.way(self, q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2)) if mixed.ndim == 4 else mixed


def weigh(scored):
    """Attention whose weights are made of its causal scores in some way."""

    def way(self, q, k, v):
        scores = (q @ k.mT / 2).masked_fill(torch.ones(COUNT, COUNT).triu(1).bool(), -torch.inf)
        return torch.einsum("bhij,bhjd->bhid", scored(scores), v)

    return way


def divide(scores):
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def divide_in_place(scores):
    powers = torch.exp(scores)
    powers /= powers.sum(dim=-1, keepdim=True)
    return powers


def keep_the_largest(scores):
    largest, places = scores.topk(3, -1)
    return torch.zeros_like(scores).scatter_(-1, places, largest.softmax(-1))


def break_sticks(scores):
    """Each key takes its share of what those behind it left."""
    left = F.logsigmoid(-scores).nan_to_num(0.0, 0.0, 0.0)
    return (F.logsigmoid(scores) + left.flip(-1).cumsum(-1).flip(-1) - left).exp()


def two_hops(scores):
    hop = scores.softmax(-1)
    return hop @ hop


SCORED = [
    divide,
    divide_in_place,
    keep_the_largest,
    lambda scores: scores.copy_(scores.softmax(-1)),
    lambda scores: torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)),
    lambda scores: torch.sigmoid(scores - 1),
    lambda scores: scores.softmax(-1).mean(1, keepdim=True),
    break_sticks,
    two_hops,
]


def choose_the_highest(scores):
    return F.one_hot(scores.argmax(-1), COUNT).to(scores.dtype)


def divide_late(self, q, k, v):
    powers = (q @ k.mT).exp()
    return (powers @ v) / powers.sum(-1, keepdim=True)


def go_online(size):
    """Running sums over parts of the keys, scaled anew whenever a higher score comes."""

    def way(self, q, k, v):
        highest = torch.full((*v.shape[:-1], 1), -torch.inf)
        total, mixed = torch.zeros_like(highest), torch.zeros_like(v)
        for start in range(0, COUNT, size):
            part = q @ k[:, :, start : start + size].mT
            higher = torch.maximum(highest, part.amax(-1, keepdim=True))
            powers, scale = (part - higher).exp(), (highest - higher).exp()
            total = total * scale + powers.sum(-1, keepdim=True)
            mixed = mixed * scale + powers @ v[:, :, start : start + size]
            highest = higher
        return mixed / total

    return way


def one_pair_after_another(self, q, k, v):
    rows = []
    for at in range(COUNT):
        parts = [(q[:, :, at : at + 1] @ k[:, :, to : to + 1].mT).sigmoid() for to in range(COUNT)]
        rows.append(sum(part @ v[:, :, to : to + 1] for to, part in enumerate(parts)))
    return torch.cat(rows, 2)


def lie_transposed(self, q, k, v):
    return (k @ q.mT).sigmoid().mT @ v


def shared_keys(self, q, k, v):
    return torch.einsum("bhij,bjd->bhid", torch.einsum("bhid,bjd->bhij", q, k[:, 0]).relu(), v[:, 0])


def sum_before(self, q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(2, keepdim=True).mT)


def run_a_sum(self, q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
    return torch.einsum("bhnd,bhnde->bhne", q, state) / (q * k.cumsum(2)).sum(-1, keepdim=True)


def decay(self, q, k, v):
    far = torch.arange(COUNT)[:, None] - torch.arange(COUNT)
    return (q @ k.mT * (0.9 ** far.clamp(min=0)).tril()) @ v


def subtract(self, q, k, v):
    first, second = ((a @ b.mT).softmax(-1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True))
    return (first - second) @ v


def shorten(self, q, k, v):
    """Linformer without a softmax."""
    return F.relu(q @ self.shorter(k.mT)) @ self.shorter(v.mT).mT


def take(self, q, k, v):
    return v.gather(2, (q @ k.mT).argmax(-1, keepdim=True).expand_as(v))


def pool_by_a_sum(self, q, k, v):
    return (self.one(torch.tanh(k)).softmax(2) * v).sum(2)


def pool_by_an_einsum(self, q, k, v):
    return torch.einsum("bhtd,bht->bhd", v, self.one(k)[..., 0].softmax(-1))


def attend_by_a_sum(self, q, k, v):
    return ((q @ k.mT).softmax(-1)[..., None] * v[:, :, None]).sum(3)


def ask_gathered_keys(self, q, k, v):
    places = (torch.arange(COUNT)[:, None] + torch.arange(3)) % COUNT
    weights = torch.einsum("bhie,bhije->bhij", q, k[:, :, places]).softmax(-1)
    return torch.einsum("bhij,bhije->bhie", weights, v[:, :, places])


def ask_row_by_row(self, q, k, v):
    rows = [torch.einsum("bhe,bhje->bhj", q[:, :, row], k).softmax(-1) for row in range(COUNT)]
    return torch.stack([torch.einsum("bhj,bhje->bhe", weights, v) for weights in rows], 2)


def add_pairs(self, q, k, v):
    return self.many(torch.tanh(q[:, :, :, None] + k[:, :, None]))[..., 0].softmax(-1) @ v


def weigh_by_a_layer(self, q, k, v):
    """A layer makes the weights of each token, one output for each key (a dense synthesizer)."""
    return self.dense(q).softmax(-1) @ v


def weigh_by_a_layer_over_pairs(self, q, k, v):
    """Additive attention whose scores a layer with several outputs makes of pairs."""
    pairs = q[:, :, :, None].expand(-1, -1, -1, COUNT, -1) + k[:, :, None].expand(-1, -1, COUNT, -1, -1)
    return self.many(torch.tanh(pairs)).softmax(3)[..., 0] @ v


def mapped(attend):
    """Attention inside of ``torch.vmap``, over its texts and heads."""
    return lambda self, q, k, v: torch.vmap(torch.vmap(attend))(q, k, v)


WAYS = [
    *((weigh(scored), why.NO_SOFTMAX) for scored in SCORED),
    *((way, why.NO_SOFTMAX) for way in (divide_late, go_online(3), go_online(1), one_pair_after_another)),
    *((way, why.NO_SOFTMAX) for way in (lie_transposed, shared_keys, decay)),
    (subtract, "some of its weights are negative when they meet the values: no distribution over keys"),
    *((way, why.SUMMED) for way in (sum_before, pool_by_an_einsum)),
    (run_a_sum, why.RUNNING),
    *((way, why.LAYER) for way in (shorten, take)),
    (weigh(choose_the_highest), POOLED),
    *((way, POOLED) for way in (pool_by_a_sum, attend_by_a_sum, ask_gathered_keys, ask_row_by_row)),
    *((way, POOLED) for way in (weigh_by_a_layer, weigh_by_a_layer_over_pairs)),
    (mapped(lambda q, k, v: (q @ k.mT).softmax(-1) @ v), MAPPED),
    (mapped(lambda q, k, v: (q @ k.mT).sigmoid() @ v), MAPPED),
    (mapped(F.scaled_dot_product_attention), MAPPED),
]


def observe(model, heads=HEADS):
    """The record of one pass that went well, and its maps; the model's output is its own."""
    torch.manual_seed(0)
    model, keep, states = model.eval(), Keep(lambda site: range(heads)), torch.randn(TEXTS, COUNT, SIZE)
    with torch.inference_mode():
        torch.manual_seed(1)
        plain = model(states)
        torch.manual_seed(1)
        with recording(model, [keep], warn=False) as record:
            assert torch.equal(model(states), plain)
    assert not record.failures
    return record, keep.maps


@pytest.mark.parametrize(("way", "reason"), WAYS)
def test_a_module_that_mixes_tokens_without_a_softmax_to_show_is_named(way, reason):
    record, _ = observe(nn.Sequential(Stream(way)))
    assert not record.sites
    assert [(layer.name, layer.reason) for layer in record.without_attention] == [("0", reason)]


def by_one_vector(self, q, k, v):
    self.seen = self.one(torch.tanh(q[:, :, :, None] + k[:, :, None])).squeeze(-1).softmax(-1)
    return self.seen @ v


def by_a_vector_of_each_head(self, q, k, v):
    pairs = torch.tanh(q[:, :, :, None] + k[:, :, None])
    self.seen = torch.einsum("bhqkd,hd->bhqk", pairs, self.table).softmax(-1)
    return self.seen @ v


def by_pairs_side_by_side(self, q, k, v):
    parts = q[:, :, :, None].expand(-1, -1, -1, COUNT, -1), k[:, :, None].expand(-1, -1, COUNT, -1, -1)
    self.seen = self.one(torch.tanh(self.both(torch.cat(parts, -1)))).squeeze(-1).softmax(-1)
    return self.seen @ v


@pytest.mark.parametrize("way", [by_one_vector, by_a_vector_of_each_head, by_pairs_side_by_side])
def test_additive_attention_by_one_score_for_each_pair_is_shown(way):
    record, (kept,) = observe(nn.Sequential(module := Stream(way)))
    assert torch.equal(kept.weights, module.seen)
    assert [site.difference < 1e-6 for site in record.sites] == [True]


def by_a_product(self, q, k, v):
    self.seen = self.one(k).softmax(2).mT
    return self.seen @ v


def by_torchs_kernel(self, q, k, v):
    query = self.table[:, None].expand(TEXTS, -1, -1, -1)
    self.seen = (query @ k.mT / EACH**0.5).softmax(-1)
    return F.scaled_dot_product_attention(query, k, v)


@pytest.mark.parametrize("way", [by_a_product, by_torchs_kernel])
def test_pooling_by_a_product_is_one_row_over_all_tokens_that_stands_at_none(way):
    record, (kept,) = observe(nn.Sequential(module := Stream(way)))
    (site,) = record.sites
    assert (site.site.kind, site.batch, site.queries, site.keys, site.offset) == ("cross", 2, 1, COUNT, None)
    torch.testing.assert_close(kept.weights, module.seen)


def mix_heads(self, q, k, v):
    gates = torch.einsum("bhnd,bgnd->bnhg", q, k)  # of the heads of one token
    return torch.einsum("bnhg,bgnd->bhnd", gates.sigmoid(), v).cumsum(-1)


def mix_layers(self, q, k, v):
    """A learned mean of what several layers made of each token."""
    return (self.table[:3, 0].softmax(0).view(3, 1, 1, 1, 1) * torch.stack([q, k, v])).sum(0)


def choose_experts(self, q, k, v):
    made = torch.stack([self.both(torch.cat(pair, -1)) for pair in ((q, k), (k, v), (v, q))], -2)
    moved = F.relu(q + q.mean(1, keepdim=True))
    return (self.many(moved).softmax(-1)[..., None, :] @ made).squeeze(-2)


def add_experts(self, q, k, v):
    made = torch.stack([self.both(torch.cat(pair, -1)) for pair in ((q, k), (k, v), (v, q))], -2)
    return (self.many(q).softmax(-1)[..., None] * made).sum(-2)


def join_scores_of_heads(self, q, k, v):
    """Scores of all heads become one by weights that each token makes for its heads (an indexer)."""
    scores = (q @ k.mT).relu().permute(0, 2, 1, 3)  # [text, query, head, key]
    return (self.one(q).permute(0, 2, 3, 1) @ scores)[:, :, 0].topk(2, -1).values


@pytest.mark.parametrize("way", [mix_heads, mix_layers, choose_experts, add_experts, join_scores_of_heads])
def test_what_mixes_no_tokens_is_neither_shown_nor_named(way):
    record, _ = observe(nn.Sequential(Stream(way)))
    assert (record.sites, record.without_attention, record.notes) == ([], [], [])


def test_powers_of_a_graph_weigh_no_values():
    def power(self, q, k, v):
        graph = (q @ k.mT).sigmoid()
        graph = graph / graph.sum(-1, keepdim=True)
        return (graph @ graph @ graph)[..., 0]

    record, _ = observe(nn.Sequential(Stream(power)))
    assert (record.sites, record.without_attention) == ([], [])


def attend(self, q, k, v):
    return (q @ k.mT).softmax(-1) @ v


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
    record, _ = observe(Layers([attend], [decay], [run_a_sum]))
    assert [site.site.name for site in record.sites] == ["layers.0.0"]
    assert [(layer.name, layer.layer, layer.reason) for layer in record.without_attention] == [
        ("layers.1.0", 1, why.NO_SOFTMAX),
        ("layers.2.0", 2, why.RUNNING),
    ]


def test_what_mixes_beside_attention_in_one_layer_is_a_note_and_no_layer_without():
    record, _ = observe(Layers([attend, decay], [attend, decay]))
    assert [site.site.name for site in record.sites] == ["layers.0.0", "layers.1.0"]
    assert not record.without_attention
    (note,) = record.notes
    assert note.startswith("tokens reach each other past the attention that is shown, too: layers.*.*")


class Attention(nn.Module):
    """A module whose name says that it attends, around another one."""

    def __init__(self, way):
        super().__init__()
        self.attention = Stream(way)

    def forward(self, x):
        return self.attention(x)


def test_an_indexer_inside_of_attention_mixes_no_tokens():
    record, _ = observe(nn.Sequential(Attention(join_scores_of_heads)))
    assert (record.sites, record.without_attention, record.notes) == ([], [], [])


class LinearAttention(Stream):
    """Its name says what it is."""


def test_the_name_of_a_class_comes_before_what_it_was_seen_to_do():
    record, _ = observe(nn.Sequential(LinearAttention(run_a_sum)))
    assert [layer.reason for layer in record.without_attention] == ["linear attention (LinearAttention)"]


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_a_model_that_is_mapped_over_its_texts_runs_as_it_did_and_each_layer_is_named(kind):
    model, given = FAMILIES["llama"].build(kind), inputs("text", batch=3)["input_ids"]
    call = torch.vmap(lambda ids: model(input_ids=ids[None], use_cache=False).last_hidden_state[0])
    with torch.inference_mode():
        alone = call(given)
        with recording(model, warn=False) as record:
            assert torch.equal(call(given), alone)
    assert (record.failures, record.sites) == ([], [])
    assert {layer.reason for layer in record.without_attention} == {MAPPED}
    assert len(record.without_attention) == len(model.layers)


def test_gradients_of_single_texts_are_taken_as_without_a_recording():
    torch.manual_seed(0)
    model, x = Stream(attend).eval(), torch.randn(3, 1, COUNT, SIZE)
    weights = dict(model.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    slopes = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    expected = slopes(weights, x)
    with recording(model, warn=False) as record:
        again = slopes(weights, x)
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    assert (record.failures, [layer.reason for layer in record.without_attention]) == ([], [MAPPED])
