"""Labels for the positions of what is no text: genes, table cells, joints, time steps, nodes of a graph."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from attnscope.attention import Axis, Kind, Token
from attnscope.axes import GROUPED
from attnscope.errors import InputError
from attnscope.models.inputs import ModelInput, text_axes
from attnscope.storage.files import read_lines

COLUMNS = ("label", "group", "special")
"""The columns of a table of labels; the first one is needed."""

YES = ("1", "true", "yes", "special")

MOST_LABELS = 1 << 20
"""Positions that a file may label."""


class Label(NamedTuple):
    """What a position is called, the group that it belongs to if any, and whether it is special."""

    text: str
    group: str = ""
    special: bool = False


def read_labels(path: Path) -> tuple[Label, ...]:
    """A label a line, or a table whose columns a first line names, between tabs: label, group, special.

    Raises ``InputError``.
    """
    lines = []
    for line in read_lines(path):
        if line.fault:
            raise InputError(f"{path}, line {line.number:,}: {line.fault}")
        lines.append(line.text)
        if len(lines) > MOST_LABELS:
            raise InputError(f"{path} has more than {MOST_LABELS:,} lines: it labels positions, one a line")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InputError(f"{path} is empty: write a label a line")
    header = [name.strip().lower() for name in lines[0].split("\t")]
    if "label" not in header or not set(header) <= set(COLUMNS):
        return tuple(Label(line) for line in lines)
    found = []
    for number, row in enumerate(csv.reader(lines[1:], delimiter="\t", quoting=csv.QUOTE_NONE), 2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {number:,}: it has {len(row)} columns, not {len(header)}")
        told: Mapping[str, str] = dict(zip(header, row, strict=True))
        special = told.get("special", "").strip().lower() in YES
        found.append(Label(told["label"], told.get("group", "").strip(), special))
    return tuple(found)


def tokens_of(labels: Sequence[Label]) -> tuple[Token, ...]:
    """Labels as tokens; equal ones are the same token, and a group stands before its labels."""
    numbers: dict[Label, int] = {}
    return tuple(
        Token(
            f"{label.group}{GROUPED}{label.text}" if label.group else label.text,
            numbers.setdefault(label, len(numbers)),
            special=label.special,
            word=place,
        )
        for place, label in enumerate(labels)
    )


def relabel(axis: Axis, tokens: tuple[Token, ...]) -> Axis:
    """An axis of as many positions with their labels; ids that were read stay what they are."""
    if len(axis) != len(tokens):
        return axis
    if isinstance(axis, range):
        return tokens
    return tuple(replace(label, id=token.id) for token, label in zip(axis, tokens, strict=True))


def label_input(prepared: ModelInput, labels: Sequence[Label]) -> ModelInput:
    """What a model reads with its positions labelled. Raises ``InputError`` for another number of them."""
    tokens = tokens_of(labels)
    axes: dict[Kind, tuple[Axis, Axis]] = {
        kind: (relabel(queries, tokens), relabel(keys, tokens))
        for kind, (queries, keys) in prepared.axes.items()
    }
    if axes and axes == prepared.axes:
        known = " or ".join(
            f"{count:,}" for count in sorted({len(each) for two in axes.values() for each in two})
        )
        raise InputError(f"there are {len(tokens):,} labels, and {known} positions")
    named = relabel(prepared.tokens, tokens)
    assert not isinstance(named, range)
    return replace(prepared, axes=axes or text_axes(tokens), tokens=named or tokens)
