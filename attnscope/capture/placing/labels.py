"""The labels of an axis: by its kind, by its length, or by the lengths of its sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice, product

from attnscope.attention import Attention, Axis, Kind, Section, Token
from attnscope.axes import PICTURE_ID, SEPARATOR_ID


def label_axes(attention: Attention, axes: Mapping[Kind, tuple[Axis, Axis]]) -> Attention:
    """Attention with the labels of its kind, if both lengths agree; else each axis with those of its length.

    Queries that are some of the keys get the labels of these. Keys of several sections get those of each.
    """
    queries, keys = axes.get(attention.site.kind, (range(0), range(0)))
    start, size = attention.offset, len(attention.queries)
    if start is not None and len(queries) == len(keys):
        queries = queries[start : start + size]
    if isinstance(attention.keys, range) and attention.keys.start > 0:  # the first ones are lost
        return attention
    if (len(queries), len(keys)) == (size, len(attention.keys)):
        return replace(attention, queries=queries, keys=keys)
    labels = labels_by_length(axes)
    own = _name_sections(attention, labels) or labels.get(len(attention.keys)) or ()
    queries = own[start : start + size] if own and start is not None else labels.get(size) or ()
    queries = queries if len(queries) == size else attention.queries
    return replace(attention, queries=queries, keys=own or attention.keys)


def labels_by_length(axes: Mapping[Kind, tuple[Axis, Axis]]) -> dict[int, tuple[Token, ...]]:
    """The labels of each length; two axes of one length name neither."""
    labels: dict[int, tuple[Token, ...]] = {}
    for axis in dict.fromkeys(axis for both in axes.values() for axis in both if isinstance(axis, tuple)):
        labels[len(axis)] = () if len(axis) in labels else axis
    return labels


def _name_sections(attention: Attention, labels: Mapping[int, tuple[Token, ...]]) -> tuple[Token, ...]:
    """Names of keys by their sections, if labels fit one of these, or if learned keys have no queries."""
    sections, size = attention.sections, len(attention.keys)
    own, apart = _own_labels(sections, labels), any(each.name and each.keys_only for each in sections)
    fit = any(own) and size not in labels
    if sum(each.length for each in sections) != size or not (apart or fit):
        return ()
    return tuple(token for tokens in _name_each(sections, own) for token in tokens)


def _own_labels(
    sections: Sequence[Section], labels: Mapping[int, tuple[Token, ...]]
) -> list[tuple[Token, ...]]:
    """The labels of each section, by its length: of two sections, of the one that is no picture's patches."""
    own: list[tuple[Token, ...]] = [()] * len(sections)
    for length in labels:
        places = [at for at, each in enumerate(sections) if each.length == length and not each.name]
        texts = [at for at in places if sections[at].grid is None]
        if len(texts or places) == 1:
            own[(texts or places)[0]] = labels[length]
    return own


def _name_each(sections: Sequence[Section], own: Sequence[tuple[Token, ...]]) -> Iterator[Sequence[Token]]:
    """The tokens of each section: what is learned, labels, the patches of pictures, else numbers."""
    pictured = [
        each.grid is not None or any(token.id >= PICTURE_ID for token in tokens)
        for each, tokens in zip(sections, own, strict=True)
    ]
    names = [
        "special" if each.name and any(pictured[max(0, at - 1) : at + 2]) else each.name
        for at, each in enumerate(sections)
    ]
    totals = Counter(name for each, name in zip(sections, names, strict=True) for _ in range(each.length))
    numbers = {name: count() for name in names}
    ids, patches, pictures = count(SEPARATOR_ID - 1, -1), count(PICTURE_ID), count(1)
    for each, name, tokens in zip(sections, names, own, strict=True):
        numbered = [*islice(numbers[name], each.length)]
        if name:
            texts = (f"[{name} {number}]" if totals[name] > 1 else f"[{name}]" for number in numbered)
            yield [Token(text, next(ids), special=True) for text in texts]
        elif tokens:
            yield tokens
        elif each.grid:
            places, which = product(*map(range, each.grid)), next(pictures)
            yield [Token(f"image {which} · {row},{column}", next(patches)) for row, column in places]
        else:
            yield [Token(str(number), number) for number in numbered]
