"""When words are said, for other programs: plain numbers, subtitles, and files of Praat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from attnscope.analysis.questions.align import Alignment, MonotoneHead
from attnscope.analysis.questions.said import Word
from attnscope.text import visible


def alignment_numbers(result: Alignment) -> dict[str, Any]:
    """An alignment as plain data; times are seconds."""
    return {
        "notes": list(result.notes),
        "heads": [head.name for head in result.heads],
        "way": result.way,
        "begin": result.begin,
        "seconds": result.seconds,
        "words": [{"text": word.text, "begin": word.begin, "end": word.end} for word in result.words],
        "tokens": [
            {"text": said.token.text, "id": said.token.id, "begin": said.begin, "end": said.end}
            for said in result.tokens
        ],
    }


def rank_numbers(ranked: Sequence[MonotoneHead]) -> dict[str, Any]:
    """Heads by how much of their attention goes forward, as plain data."""
    return {
        "ranked": [
            {"head": each.head.name, "forward": each.share, "baseline": each.baseline} for each in ranked
        ]
    }


def write_srt(result: Alignment) -> str:
    """Subtitles of one word each."""
    blocks = (
        f"{number}\n{_clock(word.begin)} --> {_clock(word.end)}\n{visible(word.text)}\n"
        for number, word in enumerate(result.words, 1)
    )
    return "\n".join(blocks)


def write_vtt(result: Alignment) -> str:
    """The same for pages, in which a text may not look like markup."""
    blocks = (
        f"{_clock(word.begin, '.')} --> {_clock(word.end, '.')}\n{escape(visible(word.text), quote=False)}\n"
        for word in result.words
    )
    return "\n".join(("WEBVTT\n", *blocks))


def _clock(seconds: float, point: str = ",") -> str:
    """``01:02:03,450``"""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def write_textgrid(result: Alignment) -> str:
    """A TextGrid of one tier, whose intervals fill the whole sound, and the last frame if that is longer."""
    end = max([result.seconds, *(word.end for word in result.words)])
    parts = list(_intervals(result.words, end))
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {end:.10g}",
        "tiers? <exists>",
        "size = 1",
        "item []:",
        "    item [1]:",
        '        class = "IntervalTier"',
        '        name = "words"',
        "        xmin = 0",
        f"        xmax = {end:.10g}",
        f"        intervals: size = {len(parts)}",
    ]
    for number, part in enumerate(parts, 1):
        text = part.text and visible(part.text).replace('"', '""')
        lines += [
            f"        intervals [{number}]:",
            f"            xmin = {part.begin:.10g}",
            f"            xmax = {part.end:.10g}",
            f'            text = "{text}"',
        ]
    return "\n".join(lines) + "\n"


def _intervals(words: Sequence[Word], seconds: float) -> Iterator[Word]:
    """The words and the silence between them; a word of no length is written with the one after it."""
    at, held = 0.0, ""
    for word in words:
        text = f"{held} {word.text}".strip()
        if word.end <= max(word.begin, at):
            held = text
            continue
        if word.begin > at:
            yield Word("", at, word.begin)
        yield Word(text, max(word.begin, at), word.end)
        at, held = word.end, ""
    if seconds > at:
        yield Word(held, at, seconds)
