"""Hand-written attention, one style per class; each returns its output and its weights."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Kernel(nn.Module):
    def forward(self, *given, **options):
        return F.scaled_dot_product_attention(*given, **options)


class FunctionModule(nn.Module):
    """Parts, and a function of the module and what it is given; ``kept`` are weights that it must show."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run, self.kept = run, []
        for name, part in parts.items():
            setattr(self, name, part)

    def keep(self, weights):
        """The weights, [text, head, query, key]."""
        self.kept.append(weights)
        return weights

    def forward(self, *given, **named):
        return self.run(self, *given, **named)


class Heads(FunctionModule):
    """Queries, keys and values of some heads by one projection, which a function of the module mixes."""

    def __init__(self, way=None, size=16, heads=4):
        super().__init__(way, qkv=nn.Linear(size, 3 * size))
        self.heads = heads

    def split(self, x):
        """-> three of [text, head, position, size]"""
        return [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]

    def attend(self, q, k, v):
        return self.run(self, q, k, v)

    def forward(self, x):
        mixed = self.attend(*self.split(x))
        return mixed.transpose(1, 2).flatten(2) if mixed.ndim == 4 else mixed


class Softmaxed(Heads):
    """Several heads, the softmax called in one of the ways there are."""

    def __init__(self, call):
        super().__init__()
        self.soft, self.drop, self.call = nn.Softmax(dim=-1), nn.Dropout(0.3), call

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = self.drop(self.call(self, scores))
        return (weights @ v).transpose(1, 2).flatten(2), weights


def add(block, x):
    return x + block.attention(x)[0]


def blocks(made, count=2):
    """Layers that others can follow; ``made`` makes the attention of each, to which its input is added."""
    torch.manual_seed(0)
    return nn.Sequential(*(FunctionModule(add, attention=made()) for _ in range(count))).eval()


SOFTMAXES = {
    "F.softmax": lambda self, s: F.softmax(s, dim=-1),
    "F.softmax in float32": lambda self, s: F.softmax(s, dim=-1, dtype=torch.float32).type_as(s),
    "torch.softmax": lambda self, s: torch.softmax(s, -1),
    "Tensor.softmax": lambda self, s: s.softmax(dim=-1),
    "nn.Softmax": lambda self, s: self.soft(s),
}


def softmaxed(name="torch.softmax"):
    return Softmaxed(SOFTMAXES[name])


class Fused(Heads):
    """Fused projections and torch's kernel, causal, as in small language models."""

    def __init__(self, size=16):
        super().__init__(size=size)
        self.out = nn.Linear(size, size)

    def forward(self, x):
        q, k, v = self.split(x)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        powers = (q @ k.mT / math.sqrt(q.shape[-1])).exp().tril()
        weights = powers / powers.sum(-1, keepdim=True)
        return self.out(mixed.transpose(1, 2).flatten(2)), weights


class Head(nn.Module):
    """One head, weights [batch, query, key]."""

    def __init__(self, size, inner):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(size, inner) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = F.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), dim=-1)
        return torch.bmm(weights, v), weights


class ListedHeads(nn.Module):
    """A module list of single heads, concatenated and projected."""

    def __init__(self, size=16, heads=4):
        super().__init__()
        self.heads = nn.ModuleList(Head(size, size // heads) for _ in range(heads))
        self.out = nn.Linear(size, size)

    def forward(self, x):
        results = [head(x) for head in self.heads]
        weights = torch.stack([weights for _, weights in results], 1)
        return self.out(torch.cat([output for output, _ in results], -1)), weights


class ListedLayers(nn.Module):
    """A module list of single-head layers, one after the other, or lists of them in a list."""

    def __init__(self, size=16, layers=3, stages=0):
        super().__init__()
        lists = [nn.ModuleList(Head(size, size) for _ in range(layers)) for _ in range(stages or 1)]
        self.layers = nn.ModuleList(lists) if stages else lists[0]

    def forward(self, x):
        kept = []
        for layer in (part for part in self.modules() if isinstance(part, Head)):
            x, weights = layer(x)
            kept.append(weights)
        return x, kept


class SequenceFirst(nn.Module):
    """Scores [query, key, batch, head], softmax over axis 1."""

    def __init__(self, size=16, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(size, size) for _ in range(4))

    def forward(self, x, mask=None):
        length, batch, size = x.shape
        q, k, v = (f(x).view(length, batch, self.heads, -1) for f in (self.q, self.k, self.v))
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) / math.sqrt(size / self.heads)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, :, None, None], -torch.inf)
        weights = scores.softmax(dim=1)
        mixed = torch.einsum("ijbh,jbhd->ibhd", weights, v)
        return self.out(mixed.reshape(length, batch, size)), weights.permute(2, 3, 0, 1)
