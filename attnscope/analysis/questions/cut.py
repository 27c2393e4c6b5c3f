"""A text cut into parts: sentences, lines, paragraphs, the texts of a pair, or parts that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, repeat

from attnscope.analysis.places.locate import locate_tokens
from attnscope.attention import Token
from attnscope.axes.places import SEPARATOR
from attnscope.axes.senses import find_senses
from attnscope.errors import InputError
from attnscope.models.inputs import Message, ModelInput
from attnscope.text import MOST_CHARACTERS

CUTS = {
    "sentence": re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’)\]]))\s+(?=[^\sa-z])|(?<=[。！？])|\n\s*\n"),
    "line": re.compile(r"\n+"),
    "paragraph": re.compile(r"\n\s*\n"),
}
"""What stands between two parts. A sentence ends at . ! or ? before a space and no small letter."""

MARK = re.compile(r"\[\[([^\[\]:]{1,40}):((?:(?!\[\[).)*?)\]\]", re.S)
"""A part that the text itself names: ``[[question: Who slept?]]``; one that never ends stops at the next."""

MOST_MARKED = 16 * MOST_CHARACTERS
"""Characters of a text with marks, or of a file of parts: many more than the text alone may have."""

LONGEST_NAME = 24


@dataclass(frozen=True, slots=True)
class Span:
    """A named part: the tokens ``start`` to ``stop - 1``."""

    name: str
    start: int
    stop: int


def read_marks(text: str) -> tuple[str, Iterator[tuple[str, int]]]:
    """A text without its marks, and where in it each part begins: ``[[name: ...]]``, and what is between.

    Raises ``InputError`` for a text without marks, or with more around its text than can be read.
    """
    if len(text) > MOST_MARKED:
        raise InputError(
            f"with its marks, the text has {len(text):,} characters: shorten it to {MOST_MARKED:,}"
        )
    if MARK.search(text) is None:
        raise InputError("the text has no marks: write [[question: Who slept?]] around each part")
    return "".join(piece for _, piece in _marked(text)), _begins(_marked(text))


def _marked(text: str) -> Iterator[tuple[str | None, str]]:
    """The pieces of a text with marks, each with its name: ``None`` for what is between two marks."""
    last = 0
    for match in MARK.finditer(text):
        yield None, text[last : match.start()]
        yield match[1].strip(), match[2].strip()
        last = match.end()
    yield None, text[last:]


def _begins(pieces: Iterable[tuple[str | None, str]]) -> Iterator[tuple[str, int]]:
    """The names of pieces, and where they begin in the text that they make; what is blank has no part."""
    at = 0
    for name, piece in pieces:
        if name is not None or piece.strip():
            yield name or "", at
        at += len(piece)


def cut_text(text: str, way: str) -> Iterator[tuple[str, int]]:
    """Where in a text its sentences, lines or paragraphs begin, each named by its number and first words.

    They are cut one after the other, for as long as somebody asks: few texts are read to their end.
    """
    ends = chain((match.end() for match in CUTS[way].finditer(text)), (len(text),))
    begins = (begin for begin, end in pairwise(chain((0,), ends)) if text[begin:end].strip())
    for number, (begin, end) in enumerate(pairwise(chain(begins, (len(text),))), 1):
        yield _name(number, text[begin:end]), begin


def spans_of(tokens: Sequence[Token], text: str, parts: Iterable[tuple[str, int]]) -> tuple[Span, ...]:
    """The parts of a text as runs of its tokens; each special token is a part of its own.

    ``parts`` are names and where in the text they begin; those behind the last token are not asked for.
    """
    following = chain(parts, repeat(("", len(text) + 1)))
    number, name, (next_name, next_begin) = 0, "", next(following)
    labels: list[tuple[int, str]] = []
    for count, (token, place) in enumerate(zip(tokens, locate_tokens(tokens, text), strict=True), 1):
        if place is None:
            labels.append((-count, token.text))
            continue
        while next_begin <= place[0] or not number:  # what is before the first part belongs to it
            number, name, (next_name, next_begin) = number + 1, next_name, next(following)
        labels.append((number, name or f"rest {number}"))
    return _runs(labels)


def spans_of_roles(tokens: Sequence[Token], messages: Sequence[Message]) -> tuple[Span, ...]:
    """The messages of a chat as parts, named by their roles; what the chat template adds is `template`.

    Raises ``InputError`` for a message that cannot be found among the tokens.
    """
    letters: list[str] = []
    owners: list[int] = []  # the token of each letter
    for number, token in enumerate(tokens):
        spelled = _letters(token.text)
        letters.append(spelled)
        owners += [number] * len(spelled)
    whole, at = "".join(letters), 0
    labels = [(-1, "template")] * len(tokens)
    for number, message in enumerate(messages):
        wanted = _letters(message.content)
        place = whole.find(wanted, at)
        if place < 0:
            raise InputError(
                f"the {message.role}'s message cannot be found in what the model reads of the chat"
            )
        at = place + len(wanted)
        for owner in range(owners[place], owners[at - 1] + 1) if wanted else ():
            labels[owner] = (number, message.role)
    return _runs(labels)


def _letters(text: str) -> str:
    """A text without spaces and capitals, which tokenizers leave out."""
    return "".join(text.split()).casefold()


def read_parts(written: str) -> tuple[tuple[str, int], ...]:
    """Where parts begin that a JSON file names: ``{"question": [0, 40]}``, each with its first character and
    the one behind its last; what is between them is a rest.

    Raises ``InputError`` for anything else.
    """
    if len(written) > MOST_MARKED:
        raise InputError(f"the file of parts has {len(written):,} characters: shorten it to {MOST_MARKED:,}")
    try:
        parts = sorted((start, stop, name) for name, (start, stop) in json.loads(written).items())
        fits = all(isinstance(each, int) for start, stop, _ in parts for each in (start, stop))
        runs = [0, *(each for start, stop, _ in parts for each in (start, stop))]
    except (ValueError, TypeError, AttributeError, RecursionError):
        fits, runs, parts = False, [], []
    if not (fits and parts and runs == sorted(runs)):
        raise InputError(
            'a file of parts is JSON, {"question": [0, 40], "fact": [41, 90]}: the first character of each '
            "part and the one behind its last, one part behind the other"
        )
    begins: list[tuple[str, int]] = []
    for (start, stop, name), (after, *_) in zip(parts, [*parts[1:], (-1,)], strict=True):
        begins += [("", 0)] if not begins and start else []
        begins += [(name, start)] + ([("", stop)] if stop != after else [])
    return tuple(begins)


def segments(tokens: Sequence[Token]) -> tuple[Span, ...]:
    """The texts of a pair, or a text and its picture or sound, as parts; a special token is one alone."""
    senses = find_senses(tokens)
    names = ("text", "text") if any(senses) else ("first text", "second text")
    labels = []
    for number, (token, sense) in enumerate(zip(tokens, senses, strict=True)):
        if sense is not None:
            labels.append((2 + senses.index(sense), sense))
        elif token.special:
            labels.append((-number - 1, token.text))
        else:
            labels.append((token.segment, names[min(token.segment, 1)]))
    return _runs(labels)


def cut_input(
    prepared: ModelInput, by: str, begins: Iterable[tuple[str, int]] | None = None
) -> tuple[Span, ...]:
    """The parts of what was read, and what was written behind it as one more.

    ``by`` is a way of ``CUTS``, "segment", "modality", or "role"; ``begins`` are parts that were named
    instead, and where in the text they begin. Raises ``InputError`` for what cannot be cut so.
    """
    read, rest = prepared.tokens[: prepared.read], "written"
    if begins is None and by not in (*CUTS, "segment", "modality", "role"):
        raise InputError(f"a text is cut by {', '.join(CUTS)}, segment, modality or role, not by {by!r}")
    if begins is None and by == "modality" and all(token.id < SEPARATOR for token in read):
        raise InputError("what was read is text alone: cut by modality what holds a picture or a sound, too")
    if begins is None and by in ("segment", "modality"):
        cut = segments(read)
    elif begins is None and by == "role":
        if not prepared.messages:
            raise InputError("what was read holds no chat that could be cut: give the text")
        cut, rest = spans_of_roles(read, prepared.messages), "assistant"
    elif prepared.text is None:
        raise InputError("what was read holds no plain text that could be cut: give the text")
    else:
        text = prepared.text[:MOST_CHARACTERS]  # no token stands for what is behind them
        cut = spans_of(read, text, cut_text(text, by) if begins is None else begins)
    if prepared.read < len(prepared.tokens):
        cut += (Span(rest, prepared.read, len(prepared.tokens)),)
    return cut


def _runs(labels: Sequence[tuple[int, str]]) -> tuple[Span, ...]:
    """Neighbours with the same label as one part; a name that comes again is numbered."""
    spans: list[Span] = []
    names: dict[str, int] = {}
    start = 0
    for (_, name), group in groupby(labels):
        stop = start + len(list(group))
        names[name] = names.get(name, 0) + 1
        spans.append(Span(name if names[name] == 1 else f"{name}#{names[name]}", start, stop))
        start = stop
    return tuple(spans)


def _name(number: int, text: str) -> str:
    words = " ".join(text.split())
    return f"{number} {words if len(words) <= LONGEST_NAME else words[: LONGEST_NAME - 1].rstrip() + '…'}"
