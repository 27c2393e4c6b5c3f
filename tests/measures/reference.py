"""Every measure again, as plain loops over float64 NumPy arrays, written from the definitions."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from itertools import product

import numpy as np
import torch

from attnscope.attention import Attention, HeldRows, Site, Token

Row = Callable[["Case", int, int, int], "float | None"]


class Case:
    """Weights and masks [batch, head, query, key] and the tokens of each text; offset None means cross."""

    def __init__(self, weights, allowed, texts, offset=0, query_texts=None):
        self.weights, self.offset = weights.astype(np.float64), offset
        self.allowed = np.broadcast_to(allowed, weights.shape)
        self.keys = texts
        past = offset or 0
        self.queries = query_texts or [text[past : past + weights.shape[2]] for text in texts]

    def even(self):
        counts = self.allowed.sum(-1, keepdims=True)
        even = np.where(self.allowed, 1.0 / np.maximum(counts, 1), 0.0)
        return Case(even, self.allowed, self.keys, self.offset, self.queries)


def chosen(of_row):
    """What ``of_row`` says of a row's weights and its number of open keys, where two are open or more."""

    def value(case, b, h, i):
        count = case.allowed[b, h, i].sum()
        return of_row(case.weights[b, h, i], count) if count > 1 else None

    return value


def entropy(row):
    return -sum(a * math.log(a) for a in row if a > 0)


def coverage90(row):
    held = np.cumsum(sorted(row, reverse=True))
    return next(number for number, sum_ in enumerate(held, 1) if sum_ >= (0.9 - 1e-6) * held[-1])


def distance2d(case, b, h, i):
    places = {j: token.text.split(",") for j, token in enumerate(case.keys[b]) if token.id >= 1 << 20}
    query = case.queries[b][i]
    if query.id < 1 << 20:
        return None
    row, column = map(int, query.text.split(","))
    seen = {j: case.weights[b, h, i, j] for j in places}
    far = sum(a * math.hypot(int(places[j][0]) - row, int(places[j][1]) - column) for j, a in seen.items())
    return far / sum(seen.values())


def largest(row):
    return [j for j, a in enumerate(row) if a == max(row)]


def monotonic(case, b, h, i):
    pairs = list(product(*map(largest, case.weights[b, h, [i, i - 1]])))
    return sum(j >= k for j, k in pairs) / len(pairs) if i else None


def gaps(case, b, h, i):
    """Each weight with how far its key stands ahead of the row."""
    return [(a, j - case.offset - i) for j, a in enumerate(case.weights[b, h, i])]


def at(gap):
    def value(case, b, h, i):
        j = case.offset + i + gap
        return case.weights[b, h, i, j] if 0 <= j < case.weights.shape[-1] else None

    return value


def first(case, b, h, i):
    return case.weights[b, h, i, 0] if case.offset + i > 0 else None


def sink_rate(case, b, h, i):
    weight = first(case, b, h, i)
    return None if weight is None else float(weight > 0.3 and weight == max(case.weights[b, h, i]))


def retrieval(case, b, h, i):
    ids, after = [token.id for token in case.keys[b]], case.offset + i + 1
    copies = [j for j in range(after) if ids[j : j + 1] == ids[after : after + 1]]
    top = largest(case.weights[b, h, i])
    return len({*copies} & {*top}) / len(top) if case.allowed[b, h, i, copies].any() else None


def on(wanted, if_any=False):
    """The weight on all keys that are ``wanted``; if asked, of rows alone to which one of them is open."""

    def value(case, b, h, i):
        keys = [j for j in range(case.weights.shape[-1]) if wanted(case, b, i, j)]
        if if_any and not case.allowed[b, h, i, keys].any():
            return None
        return case.weights[b, h, i, keys].sum()

    return value


def window(sink, recent):
    return on(lambda case, b, i, j: j < sink or abs(case.offset + i - j) < recent)


def is_punctuation(case, b, i, j):
    token = case.keys[b][j]
    return not token.special and {unicodedata.category(c)[0] for c in token.text.strip()} == {"P"}


def is_duplicate(case, b, i, j):
    return j != case.offset + i and case.keys[b][j].id == case.queries[b][i].id


def is_induction(case, b, i, j):
    return 0 < j <= case.offset + i and case.keys[b][j - 1].id == case.queries[b][i].id


def is_other_segment(case, b, i, j):
    return case.keys[b][j].segment != case.queries[b][i].segment


ROWS: dict[str, Row] = {
    "entropy": chosen(lambda row, count: entropy(row)),
    "normalized_entropy": chosen(lambda row, count: entropy(row) / math.log(count)),
    "effective_keys": chosen(lambda row, count: math.exp(entropy(row))),
    "confidence": chosen(lambda row, count: max(row)),
    "coverage90": chosen(lambda row, count: coverage90(row)),
    "monotonic": monotonic,
    "no_key": lambda case, b, h, i: 1 - sum(case.weights[b, h, i]),
    "max_logit": lambda case, b, h, i: None,  # weights alone have no scores
    "distance": lambda *place: sum(a * abs(gap) for a, gap in gaps(*place)),
    "offset": lambda *place: sum(a * gap for a, gap in gaps(*place)),
    "distance2d": distance2d,
    "self": at(0),
    "previous": at(-1),
    "next": at(1),
    "first": first,
    "sink_rate": sink_rate,
    "special": on(lambda case, b, i, j: case.keys[b][j].special),
    "punctuation": on(is_punctuation),
    "duplicate": on(is_duplicate, if_any=True),
    "induction": on(is_induction, if_any=True),
    "retrieval": retrieval,
    "segment": on(is_other_segment, if_any=True),
}

WINDOWS = {"window=3+5": window(3, 5), "window=0+1": window(0, 1), "window=40+40": window(40, 40)}
"""Some of a family."""

CROSS = (
    *("entropy", "normalized_entropy", "effective_keys", "confidence", "coverage90", "monotonic", "no_key"),
    *("distance2d", "special", "punctuation"),
)
"""What cross-attention has."""


def score(case, name, head, least=1):
    """Average and number of the rows that count, of those with at least so many open keys."""
    batch, _, queries, _ = case.weights.shape
    row = at(int(name.removeprefix("offset="))) if name.startswith("offset=") else {**ROWS, **WINDOWS}[name]
    values = [
        value
        for b in range(batch)
        for i in range(queries)
        if case.allowed[b, head, i].sum() >= least and (value := row(case, b, head, i)) is not None
    ]
    return (sum(values) / len(values), len(values)) if values else None


WORDS = ["the", "cat", "sat", ",", "mat", "...", "on", "!", "dog"]


def random_text(rng, length, pair=False):
    """A text with repeats and punctuation, between two special tokens; of two segments if asked."""
    picks = enumerate(rng.integers(0, len(WORDS), length).tolist())
    middle = [Token(WORDS[n], 100 + n, segment=int(pair and 2 * at > length)) for at, n in picks]
    return (Token("[CLS]", 1, special=True), *middle[1:-1], Token("[SEP]", 2, special=True))


def random_rows(rng, allowed, heads, sink=False):
    """Softmax of random scores over the open keys, with a sink that takes its share if asked."""
    batch, _, queries, keys = allowed.shape
    scores = rng.normal(size=(batch, heads, queries, keys)) * 3
    grown = np.where(allowed, np.exp(scores), 0.0)
    rest = np.exp(rng.normal(size=(1, heads, 1, 1))) if sink else 0.0
    return grown / np.maximum(grown.sum(-1, keepdims=True) + rest, 1e-300)


def shown(read, shape, axes, offset=0, kind="encoder", layer=0, dtype=torch.float32, statistics=None):
    """Rows to read of ``shape``, a batch and heads, as capture would hand them out."""
    batch, heads = shape
    site = Site(f"layer.{layer}", 0, kind, layer)
    facts = site, "kernel", "eager", batch, heads, heads
    return Attention(*facts, *axes, offset, dtype, read, statistics)


def attention(case, dtype=torch.float32, layer=0):
    """The case as capture would hand it out; the axes show the first text, the rest is for ``label``."""
    weights = torch.from_numpy(case.weights).to(dtype)
    axes = tuple(case.queries[0]), tuple(case.keys[0])
    kind = "cross" if case.offset is None else "encoder"
    read = HeldRows(weights, torch.from_numpy(case.allowed.copy()))
    return shown(read, weights.shape[:2], axes, case.offset, kind, layer, dtype)
