"""Attention-only models with heads written by hand, number by number, among heads of small random weights.

The residual stream has a place for who the token is, where it stands, what a head copied from another token,
and the output. There are no norms and no feed-forward parts.
"""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn import functional as F

from attnscope.models import Model
from attnscope.models.text.reader import wrap_module

WORDS = ["ash", "bay", "cod", "dew", "elm", "fig", "gum", "hop", "ivy", "jay", "kit"]
SHARP = 8.0


class Attends(nn.Module):
    """Causal attention with one number a word, or a position, in each head."""

    def __init__(self, heads: int, width: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.query, self.key, self.value = (nn.Linear(width, heads * size, bias=False) for _ in range(3))
        self.output = nn.Linear(heads * size, width, bias=False)

    def forward(self, x):
        """[batch, token, width] -> the same"""
        parts = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class Planted(nn.Module):
    """Layers of heads that do next to nothing, until some are planted."""

    def __init__(self, seed=0, layers=2, heads=3, noise=0.02, words=WORDS, length=12) -> None:
        super().__init__()
        torch.manual_seed(seed)
        ids = self.ids = len(words) + 1
        ends = [0, ids, ids + length, 2 * ids + length, 3 * ids + length]
        self.who, self.where, self.copied, self.out = map(slice, ends, ends[1:])
        self.words, self.width, self.size = words, ends[-1], max(ids, length)
        self.token, self.position = nn.Embedding(ids, self.width), nn.Embedding(length, self.width)
        self.layers = nn.ModuleList(Attends(heads, self.width, self.size) for _ in range(layers))
        self.unembed = nn.Linear(self.width, ids, bias=False)
        with torch.no_grad():
            for weights in self.layers.parameters():
                weights.normal_(std=noise)
            for table, place in ((self.token, self.who), (self.position, self.where)):
                table.weight.zero_()
                table.weight[:, place] = torch.eye(len(table.weight))
            self.unembed.weight.zero_()
            self.unembed.weight[:, self.out] = 4 * torch.eye(ids)

    def forward(self, ids):
        """[batch, token] -> [batch, token, vocabulary]"""
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = x + layer(x)
        return self.unembed(x)

    @torch.no_grad()
    def plant(self, place, query, key, writes, copies=None) -> None:
        """A head that matches ``query`` with ``key``, [number, width], and writes who it looks at.

        ``copies``, [word, word], is what is written of whom; by default, who it is.
        """
        layer, head = place
        attends, rows = self.layers[layer], slice(self.size * head, self.size * (head + 1))
        attends.query.weight[rows], attends.key.weight[rows] = SHARP * query, key
        attends.value.weight[rows], attends.output.weight[:, rows] = 0, 0
        attends.value.weight[rows][: self.ids, self.who] = torch.eye(self.ids)
        attends.output.weight[writes, rows][:, : self.ids] = torch.eye(self.ids) if copies is None else copies

    def match(self):
        """Queries and keys that match nothing.  [query | key, number, width]"""
        return torch.zeros(2, self.size, self.width)

    def plant_copy(self, place, at: int, copies=None) -> None:
        """A head whose every row looks at one position, and writes to the output who stands there."""
        query, key = self.match()
        query[0, self.where], key[0, self.where.start + at] = 1, 1
        self.plant(place, query, key, self.out, copies)

    @torch.no_grad()
    def plant_backup(self, place, at: int) -> None:
        """A head that copies as ``plant_copy`` does, but for what is written to the output already.

        It looks at the first position then, whose token must be unknown: that copies nothing.
        """
        (query, key), each = self.match(), torch.eye(self.ids)[1:]
        query[0, self.where], key[0, self.where.start + at], key[0, self.where.start] = 1, 1, 0.5
        query[1 : self.ids, self.out], key[1 : self.ids, self.who] = -each, each
        self.plant(place, 2 * query, key, self.out)
        self.layers[place[0]].value.weight[self.size * place[1]] = 0

    def plant_back(self, place, steps: int, writes: slice, copies=None, sharp=1) -> None:
        """A head that looks some tokens back, and copies who stands there."""
        query, key = self.match()
        length = self.where.stop - self.where.start
        key[:length, self.where] = torch.eye(length)
        query[:length, self.where] = sharp * torch.eye(length).roll(-steps, 0)
        self.plant(place, query, key, writes, copies)

    def plant_induction(self, before, behind) -> None:
        """A head that copies who stands before each token, and one that finds that by its own token."""
        self.plant_back(before, 1, self.copied)
        query, key = self.match()
        query[: self.ids, self.who] = key[: self.ids, self.copied] = torch.eye(self.ids)
        self.plant(behind, query, key, self.out)


def wrap_planted(module: Planted) -> Model:
    """The model, which reads the words."""
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *module.words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return wrap_module(module, tokenizer, None, "planted")
