"""Which questions are asked about the texts of a batch, by kind of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attnscope.analysis.corpus.batches import Batch
from attnscope.analysis.gold.asked import Asked, Slots, group_tokens
from attnscope.attention import Axis, Kind
from attnscope.models import ModelInput
from attnscope.storage.gold import GoldFile, GoldText


class ReadText(NamedTuple):
    """A text with its pairs, as the model reads it, and in which half of the corpus it is."""

    gold: GoldText
    prepared: ModelInput
    half: int


def ask_batch(batch: Batch, read: Sequence[ReadText], file: GoldFile, slots: Slots) -> dict[Kind, Asked]:
    """The questions about a batch, by kind of attention: within a text, or from a target to its text."""
    texts = [read[number] for number in batch.numbers]
    first = texts[0].prepared.axes
    kinds: dict[Kind, Asked] = {}
    for kind, axes in first.items():
        if (texts[0].gold.target is None) == (kind == "cross"):
            continue
        twin = next((other for other in kinds if first[other] == axes), None)  # the same tokens
        if twin is not None:
            kinds[kind] = kinds[twin]
        elif not any(isinstance(axis, range) for axis in axes):
            kinds[kind] = Asked(one_sequence=kind != "cross")
            for text in texts:
                _ask_text(text, kinds[kind], file, slots, *text.prepared.axes[kind])
    return kinds


def _ask_text(text: ReadText, asked: Asked, file: GoldFile, slots: Slots, rows: Axis, keys: Axis) -> None:
    gold = text.gold
    assert not isinstance(rows, range)
    assert not isinstance(keys, range)
    columns = group_tokens(keys, gold.text, gold.words)
    lines = columns if gold.target is None else group_tokens(rows, gold.target, gold.target_words)
    asked.ask(gold.pairs, lines, columns, slots, len(file.ways), text.half)
    if file.links:
        asked.ask_alignment(gold.pairs, slots, text.half)
