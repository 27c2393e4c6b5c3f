"""Text from outside, and the one way to clean it: everything becomes visible, nothing controls a terminal."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TypeAlias

MOST_LABEL_CHARACTERS = 1000  # most characters of a token's label
MOST_SENTENCE_CHARACTERS = 500  # most characters of a printed error

MOST_CHARACTERS = 1 << 20
"""Most characters of one text that are read: more than a book, and more tokens than any pass takes."""

MOST_DIGITS = 9  # most digits of a number that counts something
LARGEST_COUNT = 10**MOST_DIGITS - 1  # the largest number of that many digits
LARGEST_SEED = 2**64 - 1  # the largest seed: any number of 64 bits, as torch takes it

ISOLATE, ISOLATE_END = "\u2068", "\u2069"  # they keep right-to-left text from moving its neighbours
LINE_STEP = 0.5  # how much narrower a line of a title must become to be tried: half a column or letter
_JOINERS = "\u200c\u200d"  # joiners shape letters and emoji; harmless inside a text
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Categories of Unicode: control, format, surrogate and private characters, line and paragraph separators."""


_FORMULA = re.compile(r"(?![-+]?\d[\d.]*(e[-+]?\d+)?$)[-=+@\t\r]")
"""How a text begins that a spreadsheet would calculate; numbers are exempt."""


def _is_unseen(character: str) -> bool:
    """Whether a character is invisible; some code points are not characters and not allowed in XML."""
    unseen = unicodedata.category(character) in _UNSEEN and character not in _JOINERS
    return unseen or ord(character) & 0xFFFE == 0xFFFE


@cache
def _picture(character: str) -> str:
    """A character as it is shown: itself, or what stands for one that is invisible."""
    code, symbols = ord(character), {"\n": "⏎", "\t": "⇥", "\x7f": "␡"}
    picture = chr(0x2400 + code) if code < 32 else f"‹{code:04X}›"
    return symbols.get(character, picture if _is_unseen(character) else character)


@dataclass(frozen=True, slots=True, repr=False)
class Untrusted:
    """Text that somebody else wrote into a file; it may hold anything.

    Not a ``str``, so that it cannot be printed, drawn or joined to a sentence by mistake: ``str(text)``
    is the cleaned text, ``raw`` the original.
    """

    raw: str

    def __str__(self) -> str:
        return clean(self.raw)

    def __repr__(self) -> str:
        return f"Untrusted({clean(self.raw)!r})"

    def __bool__(self) -> bool:
        return bool(self.raw)


def clean(text: str) -> str:
    """A sentence or title with every character visible: ``⏎``, ``⇥``, ``␛``, ``‹202E›``; spaces stay."""
    if text.isprintable():
        return text
    first = f"‹{ord(text[0]):04X}›" if text[0] in _JOINERS else ""
    return first + "".join(map(_picture, text[bool(first) :]))


def decode_file(content: bytes) -> str:
    """A text file's text, with ``\\n`` for Windows' ends of lines. Raises ``UnicodeDecodeError``."""
    return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def escape_json(text: str) -> str:
    """JSON without characters that control a terminal: they become ``\\u202e``, which means the same."""
    if text.isprintable():
        return text
    return text.translate({ord(c): json.dumps(c)[1:-1] for c in set(text) - {"\n"} if _is_unseen(c)})


raw_csv = ContextVar("raw_csv", default=False)
"""Whether texts in CSV are left as they are, even where a spreadsheet takes them for a formula."""


def csv_cell(value: object) -> object:
    """A cell of CSV; a text that a spreadsheet would take for a formula gets a leading apostrophe."""
    if isinstance(value, float):
        return float(f"{value:.9g}")  # as in JSON; see ``records.plain``
    formula = isinstance(value, str) and _FORMULA.match(value) and not raw_csv.get()
    return f"'{value}" if formula else value


def is_framed(text: str) -> bool:
    """Whether a token is written like a special one, ``<...>`` or ``[...]``: then its end matters, too."""
    return text[:1] + text[-1:] in ("<>", "[]")


def visible(text: str) -> str:
    """A token's text with everything visible and nothing that controls a terminal.

    One leading space is dropped. A token of spaces alone reads ``␣``; an empty text reads ``∅``; a
    leading combining mark sits on ``◌``; a very long text is cut at the end.
    """
    if not text:
        return "∅"
    if len(text) > MOST_LABEL_CHARACTERS:
        text = text[: MOST_LABEL_CHARACTERS - 1] + "…"
    if not text.strip(" "):
        return "␣" * len(text)
    label = clean(text.removeprefix(" "))
    return "◌" + label if unicodedata.category(label[0]).startswith("M") else label


def read_number(text: str) -> int | None:
    """The number of at most ``MOST_DIGITS`` ASCII digits; ``int`` also takes those of other scripts."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def shorten(sentence: str) -> str:
    """A sentence of readable length: long quotations lose their middle."""
    half = MOST_SENTENCE_CHARACTERS // 2
    return sentence if len(sentence) <= 2 * half else f"{sentence[:half]} ... {sentence[-half:]}"


def isolate(text: str) -> str:
    """The text; right-to-left text is wrapped in isolates."""
    turns = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text)
    return f"{ISOLATE}{text}{ISOLATE_END}" if turns else text


def isolate_quotes(title: str) -> str:
    """A title with each quoted text isolated, so that a ``…`` stays at its end."""
    return re.sub("“[^”]*”", lambda quote: f"“{isolate(quote[0][1:-1])}”", title)


def title_words(title: str) -> list[str]:
    """The words of a title; a dot between two parts stays with the word before it."""
    return re.findall(r"\S+(?: ·(?!\S))*", " ".join(title.split()))


def isolate_lines(lines: Iterable[str]) -> list[str]:
    """The lines of one text; an isolate that spans lines is closed and reopened on each."""
    done, open_ = [], False
    for line in lines:
        line = f"{ISOLATE if open_ else ''}{line}"
        open_ = line.rfind(ISOLATE) > line.rfind(ISOLATE_END)
        done.append(f"{line}{ISOLATE_END if open_ else ''}")
    return done


Measure: TypeAlias = Callable[[str], float]  # how wide a text is


def fill_lines(items: Sequence[str], room: float, gap: str, measure: Measure) -> list[str]:
    """Items side by side in lines, as many as fit; an item longer than a line has one to itself."""
    space = measure(gap)
    lines: list[list[str]] = []
    left = -1.0
    for item in items:
        wide = measure(item)
        if lines and space + wide <= left:
            lines[-1].append(item)
            left -= space + wide
        else:
            lines.append([item])
            left = room - wide
    return [gap.join(line) for line in lines]


def balance_lines(text: str, room: float, measure: Measure, words: Sequence[str] | None = None) -> list[str]:
    """A text in as few even lines as possible, broken between parts if that costs no line, or words."""
    measure = cache(measure)
    items, gap = title_words(text) if words is None else words, " "
    lines = fill_lines(items, room, gap, measure)
    parts = text.split(" · ")
    if max(map(measure, parts)) <= room:
        in_parts = fill_lines(parts, room, " · ", measure)
        if len(in_parts) <= len(lines):
            items, gap, lines = parts, " · ", in_parts
    low, high = max(map(measure, items), default=0.0), room
    while len(lines) > 1 and high - low > LINE_STEP:
        middle = (low + high) / 2
        narrower = fill_lines(items, middle, gap, measure)
        if len(narrower) == len(lines):
            lines, high = narrower, middle
        else:
            low = middle
    return [line.removesuffix(" ·") for line in lines]


def per_cent(share: float) -> str:
    """A share in whole per cent, or to the first non-zero digit: ``97%``, ``0.003%``."""
    return f"{share:.0%}" if share >= 0.01 or share == 0 else f"{100 * share:.1g}%"


def round_short(value: float) -> str:
    """A number with two decimals, or with two significant digits if it is small."""
    if not math.isfinite(value) or value == 0 or abs(value) >= 0.01:
        return f"{value:.2f}"
    return f"{value:.{1 - math.floor(math.log10(abs(value)))}f}"


def number_ranges(numbers: Iterable[int]) -> str:
    """Numbers with consecutive runs joined: ``0-5, 7``."""
    runs = groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    ends = ([number for _, number in run] for _, run in runs)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ends)
