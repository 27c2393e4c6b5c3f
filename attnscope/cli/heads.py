"""Heads and numbers as they are typed; a wrong spelling is wrong usage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from attnscope.attention import Head
from attnscope.cli.command import refuse
from attnscope.cli.options import AxisOptions, HeadOptions, LayerOptions
from attnscope.errors import SelectionError
from attnscope.text import read_number

if TYPE_CHECKING:
    from attnscope.questions.selection import Selection

NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)

MOST = 9999  # the largest layer or head number in a list


def parse_head(spelling: str, asked: LayerOptions | None = None) -> Head:
    """The named head; its number alone suffices if a layer is given; with the given kind, if any.

    A wrong spelling, a number without a layer, or two different layers or kinds is wrong usage.
    """
    asked = asked or LayerOptions()
    layers = parse_numbers(asked.layers, "--layer")
    number = read_number(spelling)
    if number is not None:
        one = layers or ()
        refuse(len(one) != 1, "--head", f"which layer? write L0H{spelling}, or add --layer")
        return Head(one[0], number)
    try:
        head = Head(spelling)
    except SelectionError as error:
        raise click.BadParameter(str(error), param_hint="--head") from None
    two = layers not in (None, (head.layer,))
    refuse(two, "--head", f"--layer {asked.layers} and --head {spelling} name two layers")
    two = head.kind is not None and asked.kind not in (None, head.kind)
    refuse(two, "--head", f"--kind {asked.kind} and --head {spelling} name two kinds")
    return head


def parse_heads(spelled: str | None, asked: LayerOptions | None = None) -> list[Head]:
    """The heads of a comma-separated list; none without a list."""
    return [parse_head(each.strip(), asked) for each in (spelled or "").split(",") if each.strip()]


def select_heads(asked: HeadOptions) -> Selection:
    """The heads that options name: those of some layers, or one."""
    return select(asked, head=None if asked.head is None else parse_head(asked.head, asked))


def select(
    asked: LayerOptions, axes: AxisOptions | None = None, head: Head | None = None, **more: Any
) -> Selection:
    """The selection that options name, and how it is shown; a head implies its layer."""
    from attnscope.questions.selection import Selection

    layers = None if head is not None else parse_numbers(asked.layers, "--layer")
    return Selection(head=head, layers=layers, kind=asked.kind, **vars(axes or AxisOptions()), **more)


def parse_rows(spelling: str | None, option: str = "--rows") -> range | None:
    """One run of tokens, ``30-46``, both ends included; ``None`` stays. Anything else is wrong usage."""
    if spelling is None:
        return None
    rows = _read_range(spelling)
    refuse(not rows, option, f"{spelling!r}: name one run, like 30-46")
    return rows


def _read_range(spelling: str) -> range:
    """``7`` or ``30-46``, both ends included; empty for anything else, including a descending range."""
    match = NUMBERS.fullmatch(spelling.strip())
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def parse_numbers(spelling: str | None, option: str) -> tuple[int, ...] | None:
    """Numbers and ranges like ``0-3,7``, each once and in order; ``None`` stays ``None``.

    Anything else, including a descending range, is wrong usage.
    """
    if spelling is None:
        return None
    ranges = [_read_range(part) for part in spelling.split(",")]
    wrong = any(not each or each[-1] > MOST for each in ranges)
    refuse(wrong, option, f"{spelling!r}: write numbers and ranges, like 0-3,7")
    return tuple(sorted(set().union(*ranges)))
