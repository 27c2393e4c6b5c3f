"""Modules that mix tokens, by uncaptured attention or otherwise; and some that do not."""

import threading

import torch
import torch.nn.functional as F
from torch import nn

SIZE, HEADS = 32, 4
EACH = SIZE // HEADS


class Attention(nn.Module):
    """Attention by hand, and the parts that other mixers are made of."""

    def __init__(self, mix=None):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.conv, self.deep = nn.Conv1d(SIZE, SIZE, 3), nn.Conv1d(SIZE, SIZE, 3, groups=SIZE, dilation=2)
        self.cell, self.up = nn.LSTMCell(SIZE, SIZE), nn.ConvTranspose1d(SIZE, SIZE, 3, padding=1)
        self.gate, self.places = nn.Linear(SIZE, 1), nn.Parameter(torch.randn(64, 64) / 8)
        self.norm, self.many = nn.BatchNorm1d(SIZE), nn.MultiheadAttention(SIZE, HEADS, batch_first=True)
        self.mix = mix or (lambda m, q, k, v: weights(q, k) @ v)

    def heads(self, x):
        return [each(x).unflatten(-1, (HEADS, EACH)).transpose(1, 2) for each in (self.q, self.k, self.v)]

    def forward(self, x):
        return self.o(self.mix(self, *self.heads(x)).transpose(1, 2).flatten(2))


class Other(Attention):
    """What a function makes of states.  [text, token, size] -> the same"""

    def forward(self, x):
        return self.mix(self, x)


def weights(q, k):
    return (q @ k.mT / EACH**0.5).softmax(-1)


@torch.library.custom_op("attnscope_tests::attend", mutates_args=())
def custom(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / EACH**0.5, -1) @ v


@torch.jit.script
def scripted(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1), v)


def in_numpy(m, q, k, v):
    return torch.from_numpy(weights(q, k).numpy() @ v.numpy())


def in_threads(m, q, k, v):
    made = [None] * HEADS

    def work(head):
        with torch.no_grad():
            made[head] = weights(q[:, head], k[:, head]) @ v[:, head]

    threads = [threading.Thread(target=work, args=(head,)) for head in range(HEADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return torch.stack(made, 1)


def by_bags(m, q, k, v):
    """Each row is a bag of all values, with its weights."""
    rows = weights(q, k)
    count = rows.shape[-1]
    bag = torch.arange(count).expand(count, -1)
    made = [
        F.embedding_bag(bag, values, per_sample_weights=row, mode="sum")
        for row, values in zip(rows.flatten(0, 1), v.flatten(0, 1), strict=True)
    ]
    return torch.stack(made).view_as(v)


def by_vectors(m, q, k, v):
    made = [
        torch.stack([torch.mv(values.T, row) for row in rows])
        for rows, values in zip(weights(q, k).flatten(0, 1), v.flatten(0, 1), strict=True)
    ]
    return torch.stack(made).view_as(v)


def by_tensordot(m, q, k, v):
    rows = [
        torch.tensordot(a, b, 1) for a, b in zip(weights(q, k).flatten(0, 1), v.flatten(0, 1), strict=True)
    ]
    return torch.stack(rows).view_as(v)


def by_chains(m, q, k, v):
    each = zip(weights(q, k).flatten(0, 1), v.flatten(0, 1), strict=True)
    return torch.stack([torch.linalg.multi_dot([a, b, torch.eye(EACH)]) for a, b in each]).view_as(v)


def by_addbmm(m, q, k, v):
    each = zip(weights(q, k).flatten(0, 1), v.flatten(0, 1), strict=True)
    return torch.stack([torch.addbmm(torch.zeros_like(b), a[None], b[None]) for a, b in each]).view_as(v)


def three_factors(m, q, k, v):
    return torch.einsum("bhij,bhjd,de->bhie", weights(q, k), v, torch.eye(EACH))


UNSEEN = {
    "a loop over keys": lambda m, q, k, v: sum(
        weights(q, k)[..., key, None] * v[:, :, key, None] for key in range(v.shape[2])
    ),
    "tensordot": by_tensordot,
    "mv": by_vectors,
    "multi_dot": by_chains,
    "embedding_bag": by_bags,
    "an einsum of three": three_factors,
    "a custom operator": lambda m, q, k, v: custom(q, k, v),
    "a scripted function": lambda m, q, k, v: scripted(q, k, v),
    "NumPy": in_numpy,
    "threads": in_threads,
    "addbmm": by_addbmm,
    "an outer sum": lambda m, q, k, v: (weights(q, k)[..., None] * v[:, :, None]).sum(3),
    "sigmoids": lambda m, q, k, v: (q @ k.mT).sigmoid() @ v,
    "exponentials": lambda m, q, k, v: (q @ k.mT).exp() @ v / (q @ k.mT).exp().sum(-1, keepdim=True),
    "linear attention": lambda m, q, k, v: q.softmax(-1) @ (k.softmax(2).mT @ v),
    "the nearest key": lambda m, q, k, v: v.gather(2, (q @ k.mT).argmax(-1, True).expand_as(v)),
}
"""Attention by name or nature, of whose weights nothing is seen."""


def recur(m, x):
    h = c = torch.zeros(len(x), SIZE)
    states = []
    for token in x.unbind(1):
        h, c = m.cell(token, (h, c))
        states.append(h)
    return torch.stack(states, 1)


def scan(m, x):
    decay, state, states = m.gate(x).sigmoid(), torch.zeros(len(x), SIZE), []
    for at in range(x.shape[1]):
        state = decay[:, at] * state + m.v(x)[:, at]
        states.append(state)
    return torch.stack(states, 1)


def by_positions(m, x):
    count = x.shape[1]
    return torch.einsum("ij,bjd->bid", m.places[:count, :count], m.v(x))


def along_a_ring(m, x):
    count = x.shape[1]
    return x + torch.zeros_like(x).index_add(1, (torch.arange(count) + 1) % count, x)


OTHERS = {
    "a causal convolution, padded": lambda m, x: m.conv(F.pad(x.mT, (2, 0))).mT,
    "a convolution, padded and cut": lambda m, x: m.conv(F.pad(x.mT, (2, 2)))[..., : x.shape[1]].mT,
    "a convolution with gaps": lambda m, x: m.deep(F.pad(x.mT, (4, 0))).mT,
    "a transposed convolution": lambda m, x: m.up(x.mT).mT,
    "a convolution by unfolding": lambda m, x: F.pad(x.mT, (2, 0)).unfold(-1, 3, 1).mean(-1).mT,
    "LSTMCell": recur,
    "a scan": scan,
    "an einsum over positions": by_positions,
    "average pooling": lambda m, x: F.avg_pool1d(x.mT, 3, 1, 1).mT,
    "maximum pooling": lambda m, x: F.max_pool1d(x.mT, 3, 1, 1).mT,
    "cummax": lambda m, x: m.v(x).cummax(1).values,
    "cumsum": lambda m, x: m.v(x).cumsum(1),
    "logcumsumexp": lambda m, x: m.v(x).logcumsumexp(1),
    "a norm over tokens": lambda m, x: F.layer_norm(x.mT, (x.shape[1],)).mT,
    "an instance norm": lambda m, x: F.instance_norm(x.mT).mT,
    "a softmax over tokens": lambda m, x: m.v(x).softmax(1) * x,
    "less the mean": lambda m, x: x - x.mean(1, keepdim=True),
    "a shift, gated": lambda m, x: m.v(x) * F.pad(x, (0, 0, 1, -1)).sigmoid(),
    "roll": lambda m, x: m.v(x) + x.roll(1, 1),
    "a Fourier transform": lambda m, x: torch.fft.fft2(x).real,
    "a difference": lambda m, x: torch.diff(x, dim=1, prepend=x[:, :1]),
    "interpolation": lambda m, x: F.interpolate(F.interpolate(x.mT, scale_factor=0.5), x.shape[1]).mT,
    "a sort": lambda m, x: m.v(x).sort(1).values,
    "a median": lambda m, x: x + m.v(x).median(1, keepdim=True).values,
    "distances": lambda m, x: m.v(x) * torch.cdist(x, x).mean(-1, keepdim=True),
    "a covariance": lambda m, x: x @ (x.mT @ x) / x.shape[1],
    "a graph": along_a_ring,
    "sums of squares": lambda m, x: x / (x.square().cumsum(1).sqrt() + 1),
}
"""What mixes tokens and is no attention."""


def routed(m, x):
    """Each token by the expert that it chooses, sorted and put back."""
    flat = x.flatten(0, 1)
    order = m.gate(flat)[:, 0].argsort()
    return torch.zeros_like(flat).index_copy(0, order, m.v(flat[order])).view_as(x)


CLEAN = {
    "attention by hand": Attention,
    "torch's kernel": lambda: Attention(
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ),
    "torch's module": lambda: Other(lambda m, x: m.many(x, x, x, need_weights=False)[0]),
    "feed-forward": lambda: Other(lambda m, x: m.o(F.gelu(m.v(x)))),
    "a norm": lambda: Other(lambda m, x: F.layer_norm(x, (SIZE,))),
    "a batch norm in eval mode": lambda: Other(lambda m, x: m.norm(x.mT).mT),
    "a convolution of width 1": lambda: Other(lambda m, x: F.conv1d(x.mT, m.v.weight[..., None]).mT),
    "experts": lambda: Other(routed),
    "heads that talk within a token": lambda: Other(
        lambda m, x: (lambda h: (h @ h.mT).softmax(-1) @ h)(x.unflatten(-1, (HEADS, EACH))).flatten(2)
    ),
}
"""Modules that mix no tokens, or by attention that is shown alone."""


def make(kind, name):
    """A mixer of a table."""
    table = {"unseen": UNSEEN, "other": OTHERS}[kind]
    return (Attention if kind == "unseen" else Other)(table[name])


class Residual(nn.Module):
    """A module beside a residual."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Language(nn.Module):
    """A model of layers that attend, with others before and between them."""

    def __init__(self, before=None, between=None, behind=None):
        super().__init__()
        self.embed = nn.Embedding(99, SIZE)
        self.before = None if before is None else Residual(before)
        layers = [Attention(), between, Attention()]
        self.layers = nn.ModuleList(Residual(each) for each in layers if each is not None)
        self.behind = behind

    def forward(self, input_ids):
        x = self.embed(input_ids)
        x = x if self.before is None else self.before(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.behind is None else self.behind(x)
