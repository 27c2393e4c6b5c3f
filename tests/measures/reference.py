"""Every measure once more: plain loops over NumPy arrays in float64, written from the definitions."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable

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


def entropy(case, b, h, i):
    if case.allowed[b, h, i].sum() < 2:
        return None
    return -sum(a * math.log(a) for a in case.weights[b, h, i] if a > 0)


def spread(case, b, h, i):
    value = entropy(case, b, h, i)
    return None if value is None else value / math.log(case.allowed[b, h, i].sum())


def span(case, b, h, i):
    value = entropy(case, b, h, i)
    return None if value is None else math.exp(value)


def confidence(case, b, h, i):
    return max(case.weights[b, h, i]) if case.allowed[b, h, i].sum() > 1 else None


def coverage90(case, b, h, i):
    if case.allowed[b, h, i].sum() < 2:
        return None
    row = sorted(case.weights[b, h, i], reverse=True)
    held, keys = 0.0, 0
    while held < (0.9 - 1e-6) * sum(row) or keys == 0:
        held, keys = held + row[keys], keys + 1
    return keys


def distance2d(case, b, h, i):
    places = {j: token.text.split(",") for j, token in enumerate(case.keys[b]) if token.id >= 1 << 20}
    query = case.queries[b][i]
    if query.id < 1 << 20:
        return None
    row, column = map(int, query.text.split(","))
    seen = {j: case.weights[b, h, i, j] for j in places}
    far = sum(a * math.hypot(int(places[j][0]) - row, int(places[j][1]) - column) for j, a in seen.items())
    return far / sum(seen.values())


def monotonic(case, b, h, i):
    if i == 0:
        return None
    here, before = ([j for j, a in enumerate(row) if a == max(row)] for row in case.weights[b, h, [i, i - 1]])
    return sum(j >= k for j in here for k in before) / (len(here) * len(before))


def sink(case, b, h, i):
    return 1 - sum(case.weights[b, h, i])


def distance(case, b, h, i):
    return sum(a * abs(case.offset + i - j) for j, a in enumerate(case.weights[b, h, i]))


def offset(case, b, h, i):
    return sum(a * (j - case.offset - i) for j, a in enumerate(case.weights[b, h, i]))


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
    row, at_ = case.weights[b, h, i], case.offset + i
    ids = [token.id for token in case.keys[b]]
    copies = [j for j in range(at_ + 1) if at_ + 1 < len(ids) and ids[j] == ids[at_ + 1]]
    largest = [j for j, a in enumerate(row) if a == max(row)]
    open_ = any(case.allowed[b, h, i, j] for j in copies)
    return len(set(copies) & set(largest)) / len(largest) if open_ else None


def window(sink, recent):
    def value(case, b, h, i):
        near = (j < sink or abs(case.offset + i - j) < recent for j in range(case.weights.shape[-1]))
        return sum(a for a, kept in zip(case.weights[b, h, i], near, strict=True) if kept)

    return value


def special(case, b, h, i):
    return sum(a for a, token in zip(case.weights[b, h, i], case.keys[b], strict=True) if token.special)


def punctuation(case, b, h, i):
    def is_meant(token):
        kinds = {unicodedata.category(character)[0] for character in token.text.strip()}
        return not token.special and kinds == {"P"}

    return sum(a for a, token in zip(case.weights[b, h, i], case.keys[b], strict=True) if is_meant(token))


def _pairs(wanted):
    def value(case, b, h, i):
        chosen = [j for j in case.allowed[b, h, i].nonzero()[0].tolist() if wanted(case, b, i, j)]
        return sum(case.weights[b, h, i, j] for j in chosen) if chosen else None

    return value


def _is_duplicate(case, b, i, j):
    return j != case.offset + i and case.keys[b][j].id == case.queries[b][i].id


def _is_induction(case, b, i, j):
    before = j - 1
    return before >= 0 and before < case.offset + i and case.keys[b][before].id == case.queries[b][i].id


def _is_other_segment(case, b, i, j):
    return case.keys[b][j].segment != case.queries[b][i].segment


ROWS: dict[str, Row] = {
    "entropy": entropy,
    "normalized_entropy": spread,
    "effective_keys": span,
    "confidence": confidence,
    "coverage90": coverage90,
    "monotonic": monotonic,
    "no_key": sink,
    "max_logit": lambda case, b, h, i: None,  # weights alone have no scores
    "distance": distance,
    "offset": offset,
    "distance2d": distance2d,
    "self": at(0),
    "previous": at(-1),
    "next": at(1),
    "first": first,
    "sink_rate": sink_rate,
    "special": special,
    "punctuation": punctuation,
    "duplicate": _pairs(_is_duplicate),
    "induction": _pairs(_is_induction),
    "retrieval": retrieval,
    "segment": _pairs(_is_other_segment),
}

WINDOWS = {"window=3+5": window(3, 5), "window=0+1": window(0, 1), "window=40+40": window(40, 40)}
"""Some of a family."""

CROSS = (
    *("entropy", "normalized_entropy", "effective_keys", "confidence", "coverage90", "monotonic", "no_key"),
    *("distance2d", "special", "punctuation"),
)
"""What cross-attention has."""


def figure(case, name, head, least=1):
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
    picks = rng.integers(0, len(WORDS), length)
    segments = [int(pair and 2 * n > length) for n in range(length)]
    middle = [Token(WORDS[n], 100 + int(n), segment=part) for n, part in zip(picks, segments, strict=True)]
    return (Token("[CLS]", 1, special=True), *middle[1:-1], Token("[SEP]", 2, special=True))


def random_rows(rng, allowed, heads, sink):
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


def attention(case, dtype=torch.float32, layer=0, labelled=True):
    """The case as capture would hand it out; the axes show the first text, the rest is for ``label``."""
    weights = torch.from_numpy(case.weights).to(dtype)
    axes = [tuple(case.queries[0]), tuple(case.keys[0])] if labelled else map(range, weights.shape[2:])
    kind = "cross" if case.offset is None else "encoder"
    read = HeldRows(weights, torch.from_numpy(case.allowed.copy()))
    return shown(read, weights.shape[:2], axes, case.offset, kind, layer, dtype)
