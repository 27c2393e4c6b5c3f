"""Attention-only models with heads written by hand, number by number, among heads of small random weights.

The residual stream has a place for who the token is, where it stands, what a head copied from another token,
and the output. There are no norms and no feed-forward parts.
"""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn import functional as F

from attnscope.models import Model
from attnscope.models.module import wrap_module

WORDS = ["ash", "bay", "cod", "dew", "elm", "fig", "gum", "hop", "ivy", "jay", "kit"]
IDS, LENGTH = len(WORDS) + 1, 12
WHO, WHERE = slice(0, IDS), slice(IDS, IDS + LENGTH)
COPIED, OUT = slice(IDS + LENGTH, 2 * IDS + LENGTH), slice(2 * IDS + LENGTH, 3 * IDS + LENGTH)
SHARP = 8.0


class Attends(nn.Module):
    """Causal attention with one number a word in each head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(OUT.stop, heads * IDS, bias=False) for _ in range(3))
        self.output = nn.Linear(heads * IDS, OUT.stop, bias=False)

    def forward(self, x):
        """[batch, token, width] -> the same"""
        parts = (part(x).unflatten(-1, (self.heads, IDS)) for part in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class Planted(nn.Module):
    """Layers of heads that do next to nothing, until some are planted."""

    def __init__(self, seed: int, layers: int = 2, heads: int = 3, noise: float = 0.02) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.token, self.position = nn.Embedding(IDS, OUT.stop), nn.Embedding(LENGTH, OUT.stop)
        self.layers = nn.ModuleList(Attends(heads) for _ in range(layers))
        self.unembed = nn.Linear(OUT.stop, IDS, bias=False)
        with torch.no_grad():
            for weights in self.layers.parameters():
                weights.normal_(std=noise)
            for table, place in ((self.token, WHO), (self.position, WHERE)):
                table.weight.zero_()
                table.weight[:, place] = torch.eye(len(table.weight))
            self.unembed.weight.zero_()
            self.unembed.weight[:, OUT] = 4 * torch.eye(IDS)

    def forward(self, ids):
        """[batch, token] -> [batch, token, vocabulary]"""
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = x + layer(x)
        return self.unembed(x)

    @torch.no_grad()
    def plant(self, place, query, key, writes) -> None:
        """A head that matches ``query`` with ``key``, [number, width], and writes who it looks at."""
        layer, head = place
        attends, rows = self.layers[layer], slice(IDS * head, IDS * head + IDS)
        attends.query.weight[rows], attends.key.weight[rows] = SHARP * query, key
        attends.value.weight[rows], attends.output.weight[:, rows] = 0, 0
        attends.value.weight[rows, WHO] = torch.eye(IDS)
        attends.output.weight[writes, rows] = torch.eye(IDS)

    def plant_copy(self, place, at: int) -> None:
        """A head whose every row looks at one position, and writes to the output who stands there."""
        query, key = torch.zeros(2, IDS, OUT.stop)
        query[0, WHERE], key[0, WHERE.start + at] = 1, 1
        self.plant(place, query, key, OUT)

    @torch.no_grad()
    def plant_backup(self, place, at: int) -> None:
        """A head that copies as ``plant_copy`` does, but for what is written to the output already.

        It looks at the first position then, whose token must be unknown: that copies nothing.
        """
        query, key = torch.zeros(2, IDS, OUT.stop)
        query[0, WHERE], key[0, WHERE.start + at], key[0, WHERE.start] = 1, 1, 0.5
        query[1:, OUT], key[1:, WHO] = -torch.eye(IDS)[1:], torch.eye(IDS)[1:]
        self.plant(place, 2 * query, key, OUT)
        self.layers[place[0]].value.weight[IDS * place[1]] = 0

    def plant_induction(self, before, behind) -> None:
        """A head that copies who stands before each token, and one that finds that by its own token."""
        query, key = torch.zeros(2, IDS, OUT.stop)
        key[:, WHERE] = torch.eye(IDS)
        query[:, WHERE] = torch.eye(IDS).roll(-1, 0)
        self.plant(before, query, key, COPIED)
        query, key = torch.zeros(2, IDS, OUT.stop)
        query[:, WHO] = key[:, COPIED] = torch.eye(IDS)
        self.plant(behind, query, key, OUT)


def wrap_planted(module: Planted) -> Model:
    """The model, which reads the words."""
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return wrap_module(module, tokenizer, None, "planted")
