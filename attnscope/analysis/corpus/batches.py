"""Texts of equal token count, put together: no padding exists, and every figure stays that of one text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch

from attnscope.attention import Kind, Token
from attnscope.models import ModelInput
from attnscope.storage.corpus import Entry
from attnscope.storage.gold import GoldText

WINDOW_TEXTS = 8192
WINDOW_CHARACTERS = 1 << 20
"""Texts among which equal lengths are looked for, whichever is reached first; so many are held at once."""

BATCH_TOKENS = 4096
"""Tokens that go through a model together: enough to keep the processor busy, few enough for its caches."""


Item = TypeVar("Item", Entry, GoldText)


class Batch(NamedTuple):
    """Texts of one length: what the model reads, and the tokens of the queries and keys of each text."""

    prepared: ModelInput
    labels: Mapping[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]]
    texts: int
    tokens: int
    numbers: Sequence[int] = ()  # of the texts, among those that were put into batches


def windows(entries: Iterable[Item]) -> Iterator[list[Item]]:
    """Cut a stream of texts where enough are together."""
    window: list[Item] = []
    characters = 0
    for entry in entries:
        window.append(entry)
        characters += len(entry.text)
        if len(window) == WINDOW_TEXTS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def batches(prepared: Iterable[ModelInput]) -> list[Batch]:
    """The texts in batches, the longest texts first; the same texts always make the same batches."""
    alike: dict[tuple[object, ...], list[tuple[int, ModelInput]]] = {}
    for number, one in enumerate(prepared):
        alike.setdefault(_shape(one), []).append((number, one))
    groups = sorted(alike.values(), key=lambda group: -len(group[0][1].tokens))
    made = []
    for group in groups:
        size = max(1, BATCH_TOKENS // len(group[0][1].tokens))
        for start in range(0, len(group), size):
            numbers, texts = zip(*group[start : start + size], strict=True)
            made.append(join_texts(texts)._replace(numbers=numbers))
    return made


def join_texts(texts: Sequence[ModelInput]) -> Batch:
    """One batch of texts whose inputs have the same shapes."""
    first = texts[0]
    inputs = {name: torch.cat([text.inputs[name] for text in texts]) for name in first.inputs}
    arguments = tuple(torch.cat(parts) for parts in zip(*(text.arguments for text in texts), strict=True))
    labels: dict[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]] = {}
    for kind in first.axes:
        axes = [text.axes[kind] for text in texts]
        queries = [queries for queries, _ in axes if not isinstance(queries, range)]
        keys = [keys for _, keys in axes if not isinstance(keys, range)]
        if len(queries) == len(keys) == len(texts):
            one_sequence = all(queries is keys for queries, keys in axes)  # then their facts are had once
            labels[kind] = (queries, queries) if one_sequence else (queries, keys)
    tokens = tuple(token for text in texts for token in text.tokens)
    prepared = ModelInput(inputs, {}, tokens, settings=first.settings, arguments=arguments)
    return Batch(prepared, labels, len(texts), len(tokens))


def _shape(text: ModelInput) -> tuple[object, ...]:
    return (
        len(text.tokens),
        *((name, tensor.shape) for name, tensor in text.inputs.items()),
        *(tensor.shape for tensor in text.arguments),
    )
