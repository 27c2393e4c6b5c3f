"""Modules that mix tokens: with softmax weights to show, or without any."""

import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture.lineage.layout import JOINED
from attnscope.capture.rows.capture import FACTORS, MAPPED, SIGNED, TALKING
from tests.capture.modules import Heads

TEXTS, SIZE, HEADS, COUNT = 2, 16, 4, 7
EACH = SIZE // HEADS
STATES = torch.randn(TEXTS, COUNT, SIZE, generator=torch.Generator().manual_seed(0))  # all of them ask


class Stream(Heads):
    """Attention whose name says nothing, with what its ways need."""

    def __init__(self, way):
        super().__init__(way)
        self.out = nn.Linear(SIZE, SIZE)
        self.shorter, self.table = nn.Linear(COUNT, 3, bias=False), nn.Parameter(torch.randn(HEADS, EACH))
        self.one, self.many, self.both = nn.Linear(EACH, 1), nn.Linear(EACH, 3), nn.Linear(2 * EACH, EACH)
        self.dense, self.mixing = nn.Linear(EACH, COUNT), nn.Parameter(torch.randn(5, COUNT))
        self.static = nn.Parameter(torch.randn(HEADS, COUNT, COUNT))
        self.distances = nn.Parameter(torch.randn(2 * COUNT, EACH))
        self.line, self.conv = nn.Linear(HEADS, HEADS), nn.Conv2d(HEADS, HEADS, 1)

    def forward(self, x):
        mixed = super().forward(x)
        return self.out(mixed) if mixed.shape == x.shape else mixed


def join(x, made):
    """The states behind a module; what it pooled meets each of them."""
    return x + (made if made.shape == x.shape else made.flatten(1).mean(-1)[:, None, None])


class Chain(nn.Module):
    """Modules by name, lists of them, and lists of lists, one after another, each with a residual."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, self.listed(part))

    def listed(self, part):
        return nn.ModuleList(map(self.listed, part)) if isinstance(part, list) else part

    def forward(self, x, parts=None):
        for part in self.children() if parts is None else parts:
            x = self.forward(x, part) if isinstance(part, nn.ModuleList) else join(x, part(x))
        return x


def weigh(scored):
    """Attention whose weights are made of its causal scores in some way."""

    def way(self, q, k, v):
        scores = (q @ k.mT / 2).masked_fill(torch.ones(COUNT, COUNT).triu(1).bool(), -torch.inf)
        return torch.einsum("bhij,bhjd->bhid", scored(scores), v)

    return way


def divide(scores):
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def keep_the_largest(scores):
    largest, places = scores.topk(3, -1)
    return torch.zeros_like(scores).scatter_(-1, places, largest.softmax(-1))


def break_sticks(scores):
    """Each key takes its share of what those behind it left."""
    left = F.logsigmoid(-scores).nan_to_num(0.0, 0.0, 0.0)
    return (F.logsigmoid(scores) + left.flip(-1).cumsum(-1).flip(-1) - left).exp()


SCORED = [
    divide,
    keep_the_largest,
    lambda scores: torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)),
    lambda scores: torch.sigmoid(scores - 1),
    break_sticks,
]


def choose_the_highest(scores):
    return F.one_hot(scores.argmax(-1), COUNT).to(scores.dtype)


def one_mean_for_all_heads(scores):
    return scores.softmax(-1).mean(1, keepdim=True)


def go_online(self, q, k, v):
    """Running sums over parts of the keys, scaled anew whenever a higher score comes."""
    highest = torch.full((*v.shape[:-1], 1), -torch.inf)
    total, mixed = torch.zeros_like(highest), torch.zeros_like(v)
    for keys, values in zip(k.split(3, 2), v.split(3, 2), strict=True):
        part = q @ keys.mT
        higher = torch.maximum(highest, part.amax(-1, keepdim=True))
        powers, scale = (part - higher).exp(), (highest - higher).exp()
        total = total * scale + powers.sum(-1, keepdim=True)
        mixed = mixed * scale + powers @ values
        highest = higher
    return mixed / total


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


def run_a_sum_along_an_axis(self, q, k, v):
    return v.cumsum(axis=2)  # NumPy's word for dim


def attend_along_an_axis(self, q, k, v):
    return self.keep((q @ k.mT).softmax(axis=-1)) @ v


def add_the_one_before(self, q, k, v):
    return q + v.roll(1, 2)


def add_the_mean(self, q, k, v):
    return q + self.many(v.mean(2, keepdim=True)).relu().mean(-1, keepdim=True)


def scale_by_the_largest(self, q, k, v):
    return q * v.amax(2)[:, :, None].expand_as(q)


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


def weigh_by_a_layer(self, q, k, v):
    """A layer makes the weights of each token, one output for each key (a dense synthesizer)."""
    return self.dense(q).softmax(-1) @ v


def weigh_by_a_layer_over_pairs(self, q, k, v):
    """Additive attention whose scores a layer with several outputs makes of pairs."""
    pairs = q[:, :, :, None].expand(-1, -1, -1, COUNT, -1) + k[:, :, None].expand(-1, -1, COUNT, -1, -1)
    return self.many(torch.tanh(pairs)).softmax(3)[..., 0] @ v


def mix_by_a_layer(self, weights):
    return self.line(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def mix_by_a_convolution(self, weights):
    return self.conv(weights)


def mix_by_an_einsum(self, weights):
    return torch.einsum("bhij,hg->bgij", weights, self.table)


def talk(mix, behind):
    """Attention whose heads a learned layer mixes, before the softmax or behind it (talking heads)."""

    def way(self, q, k, v):
        if behind:
            return mix(self, (q @ k.mT).softmax(-1)) @ v
        return self.keep(mix(self, q @ k.mT).softmax(-1)) @ v

    return way


TALK = [mix_by_a_layer, mix_by_a_convolution, mix_by_an_einsum]


def mapped(attend):
    """Attention inside of ``torch.vmap``, over its texts and heads."""
    return lambda self, q, k, v: torch.vmap(torch.vmap(attend))(q, k, v)


def by_one_vector(self, q, k, v):
    weights = self.one(torch.tanh(q[:, :, :, None] + k[:, :, None])).squeeze(-1).softmax(-1)
    return self.keep(weights) @ v


def by_a_vector_of_each_head(self, q, k, v):
    pairs = torch.tanh(q[:, :, :, None] + k[:, :, None])
    return self.keep(torch.einsum("bhqkd,hd->bhqk", pairs, self.table).softmax(-1)) @ v


def by_pairs_side_by_side(self, q, k, v):
    parts = q[:, :, :, None].expand(-1, -1, -1, COUNT, -1), k[:, :, None].expand(-1, -1, COUNT, -1, -1)
    return self.keep(self.one(torch.tanh(self.both(torch.cat(parts, -1)))).squeeze(-1).softmax(-1)) @ v


def attend(self, q, k, v):
    return self.keep((q @ k.mT).softmax(-1)) @ v


def two_hops(self, q, k, v):
    past = torch.ones(COUNT, COUNT, dtype=torch.bool).tril()
    hop = (q @ k.mT).masked_fill(~past, -torch.inf).softmax(-1)
    return self.keep(hop @ hop) @ v


def by_landmarks(self, q, k, v):
    """Nyström's attention: of three softmaxes the second is inverted, and the third meets the values."""
    few, keys = (each[:, :, :6].unflatten(2, (3, 2)).mean(3) for each in (q, k))
    to, between, back = ((one @ other.mT).softmax(-1) for one, other in ((q, keys), (few, keys), (few, k)))
    inverse, whole = between.mT / between.sum(-2).max() / between.sum(-1).max(), 2 * torch.eye(3)
    for _ in range(6):
        inverse = inverse @ (whole - between @ inverse)
    return (to @ inverse) @ (self.keep(back) @ v)


def by_the_kernel(self, q, k, v):
    past = torch.ones(COUNT, COUNT, dtype=torch.bool).tril()
    self.keep((q @ k.mT / EACH**0.5).masked_fill(~past, -torch.inf).softmax(-1))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=past)


def queries_in_chunks(self, q, k, v):
    rows = [(part @ k.mT).softmax(-1) for part in q.split(3, 2)]
    self.keep(torch.cat(rows, 2))
    return torch.cat([row @ v for row in rows], 2)


def positions_first(self, q, k, v):
    q, k, v = (each.permute(2, 0, 1, 3) for each in (q, k, v))
    weights = torch.einsum("ibhd,jbhd->ijbh", q, k).softmax(1)
    self.keep(weights.permute(2, 3, 0, 1))
    return torch.einsum("ijbh,jbhd->bhid", weights, v)


def grouped_by_an_axis(self, q, k, v):
    """Queries of several heads ask the same keys: the group has an axis of its own."""
    weights = torch.einsum("bhgqd,bhkd->bhgqk", q.unflatten(1, (-1, 2)), k[:, ::2]).softmax(-1)
    self.keep(weights.flatten(1, 2))
    return torch.einsum("bhgqk,bhkd->bhgqd", weights, v[:, ::2]).flatten(1, 2)


def grouped_by_an_axis_and_multiplied(self, q, k, v):
    weights = (q.unflatten(1, (-1, 2)) @ k[:, ::2, None].mT).softmax(-1)
    self.keep(weights.flatten(1, 2))
    return (weights @ v[:, ::2, None]).flatten(1, 2)


NEAR = (torch.arange(COUNT)[:, None] + torch.tensor([-1, 0, 1])) % COUNT  # three neighbours, round a circle
DISTANCES = torch.arange(COUNT)[:, None] - torch.arange(COUNT) + COUNT


def put(weights, places):
    """[text, head, query, slot] at the keys that each slot is -> [text, head, query, key]"""
    return torch.zeros(TEXTS, HEADS, COUNT, COUNT).scatter(-1, places.expand_as(weights), weights)


def among_neighbours(self, q, k, v):
    """Keys and values of three neighbours lie beside each other."""
    weights = (q[:, :, :, None] @ k[:, :, NEAR].mT).softmax(-1)  # [text, head, query, 1, slot]
    self.keep(put(weights[..., 0, :], NEAR))
    return (weights @ v[:, :, NEAR])[..., 0, :]


def by_queries_that_each_head_samples(self, q, k, v):
    """The longest queries of each head ask, all others take the mean (ProbSparse attention of Informer)."""
    asked = q.norm(dim=-1).topk(5).indices[..., None]  # [text, head, sampled, 1]
    weights = (q.gather(2, asked.expand(-1, -1, -1, EACH)) @ k.mT).softmax(-1)
    full = torch.zeros(TEXTS, HEADS, COUNT, COUNT).scatter(2, asked.expand(-1, -1, -1, COUNT), weights)
    self.keep(full[:, :, int(asked.min()) : int(asked.max()) + 1])
    mixed = v.mean(2, keepdim=True).expand(-1, -1, COUNT, -1)
    return mixed.scatter(2, asked.expand(-1, -1, -1, EACH), weights @ v)


def to_mixed_keys(self, q, k, v):
    """Five keys, each a sum of all (Linformer): they stand at no token."""
    return self.keep((q @ (self.mixing @ k).mT).softmax(-1)) @ (self.mixing @ v)


def with_values_of_distances(self, q, k, v):
    """Beside the values, each distance has one that was learned."""
    weights = self.keep((q @ k.mT).softmax(-1))
    return weights @ v + torch.einsum("bhij,ije->bhie", weights, self.distances[DISTANCES])


def with_values_of_distances_first(self, q, k, v):
    """The same in the layout of other libraries: a product for each query."""
    weights = self.keep((q @ k.mT).softmax(-1))
    rows = weights.permute(2, 0, 1, 3).reshape(COUNT, TEXTS * HEADS, COUNT) @ self.distances[DISTANCES]
    return rows.view(COUNT, TEXTS, HEADS, EACH).permute(1, 2, 0, 3) + weights @ v


def by_learned_weights(self, q, k, v):
    """Weights that are alike in all texts (a random synthesizer)."""
    weights = self.static.softmax(-1)
    self.keep(weights.expand(TEXTS, -1, -1, -1))
    return weights @ v


def by_learned_weights_and_an_einsum(self, q, k, v):
    weights = self.static.softmax(-1)
    self.keep(weights.expand(TEXTS, -1, -1, -1))
    return torch.einsum("hij,bhje->bhie", weights, v)


def by_parts_of_the_keys(self, q, k, v):
    """Softmaxes over some keys each, joined by their sums, as in attention over several machines."""
    parts = [q @ part.mT for part in k.split(3, 2)]
    share = torch.stack([part.logsumexp(-1, keepdim=True) for part in parts]).softmax(0)
    mixed = [part.softmax(-1) @ of for part, of in zip(parts, v.split(3, 2), strict=True)]
    return (torch.stack(mixed) * share).sum(0)


def among_neighbours_and_some_for_all(self, q, k, v):
    """One softmax over three neighbours and two keys that all ask: two products."""
    near = [torch.stack([part.roll(step, 2) for step in (1, 0, -1)], 3) for part in (k, v)]
    scores = torch.cat([torch.einsum("bhie,bhije->bhij", q, near[0]), q @ k[:, :, :2].mT], -1)
    weights = scores.softmax(-1)
    return torch.einsum("bhij,bhije->bhie", weights[..., :3], near[1]) + weights[..., 3:] @ v[:, :, :2]


SHOWN = [
    *(attend, by_the_kernel, queries_in_chunks, positions_first, among_neighbours),
    *(by_one_vector, by_a_vector_of_each_head, by_pairs_side_by_side, two_hops),
]
PLACED = [  # tried at one place in a model alone
    *(by_queries_that_each_head_samples, to_mixed_keys, with_values_of_distances),
    *(with_values_of_distances_first, by_learned_weights, by_learned_weights_and_an_einsum),
    *(talk(mix, behind=False) for mix in TALK),
    *(attend_along_an_axis, grouped_by_an_axis, grouped_by_an_axis_and_multiplied),
]

NAMED = [
    (subtract, SIGNED),
    (by_landmarks, FACTORS),
    *((talk(mix, behind=True), TALKING) for mix in TALK),
    *((way, JOINED) for way in (by_parts_of_the_keys, among_neighbours_and_some_for_all)),
    (mapped(lambda q, k, v: (q @ k.mT).softmax(-1) @ v), MAPPED),
    (mapped(F.scaled_dot_product_attention), MAPPED),
]
MIXED = [  # with no weights of a softmax to show, so that nothing is seen of them
    *map(weigh, SCORED),
    *(go_online, one_pair_after_another, lie_transposed, shared_keys, decay),
    *(sum_before, pool_by_an_einsum, run_a_sum, run_a_sum_along_an_axis),
    *(add_the_one_before, add_the_mean, scale_by_the_largest, shorten, take),
    *map(weigh, (choose_the_highest, one_mean_for_all_heads)),
    *(pool_by_a_sum, attend_by_a_sum, ask_gathered_keys, ask_row_by_row),
    *(weigh_by_a_layer, weigh_by_a_layer_over_pairs),
    mapped(lambda q, k, v: (q @ k.mT).sigmoid() @ v),
]
