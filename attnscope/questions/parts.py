"""Parts of a text, as users write them: a word, a phrase, a class of tokens, a regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, pairwise, repeat
from string import punctuation
from typing import Annotated, TypeAlias

from attnscope.attention import Axis, Token
from attnscope.axes import GROUP_MARK, SEPARATOR_ID, Place, coarsen_axis, continue_text, find_senses, places
from attnscope.errors import InputError, SelectionError
from attnscope.limits import OutOfTime, deadline
from attnscope.measures.block import all_punctuation
from attnscope.models.inputs import ModelInput
from attnscope.models.text.tokens import UNKNOWN_END
from attnscope.records import Meaning, read, record
from attnscope.storage.files import parse_json
from attnscope.storage.trace.layout import DOCUMENT, Message
from attnscope.text import MOST_CHARACTERS, read_number

Group: TypeAlias = tuple[int, ...]  # tokens that count as one: the pieces of a word, or a phrase
QUOTE = re.compile(r"\\([\"'])")  # a quote inside a quoted phrase

CLASSES = {"special", "punctuation"}  # of tokens; no words are meant by them
SAME, AFTER_SAME = "same", "after same"  # as the row's token, what followed an earlier one: keys of a row
FIRST = re.compile(r"(image|frame)s? 1(-\d+)? · ")  # the first picture, the default for a row and a column


@dataclass(frozen=True, slots=True)
class TextPart:
    """One side of a question, as written; or ``step``, how far it is from each token of the other side."""

    text: str
    step: int | None = None

    @property
    def everything(self) -> bool:
        """Whether all tokens are meant."""
        return self.text == "*"

    @property
    def relative(self) -> bool:
        """Whether its tokens depend on the row that asks for them."""
        return self.step is not None or self.text in (SAME, AFTER_SAME)

    def tokens(self, axis: Axis) -> tuple[Group, ...]:
        """The matching places on an axis, each as its tokens; empty for no match, or what is relative."""
        if self.relative:
            return ()
        words = word_groups(axis)
        if self.everything:
            return tuple(group for _, group in words)
        number = read_number(self.text)
        if number is not None:
            return ((number,),) if number < len(axis) else ()
        if self.quoted is not None:
            return tuple(_phrase(self.quoted, axis))
        if _between(self.text, "/"):
            return _matching(self.text, words)
        meant = tuple(group for place, group in words if self.text in _classes(place))
        if meant or self.text in CLASSES:
            return meant
        name, number = self.place
        if number is not None:
            several = name in CLASSES or _between(name, "\"'/")
            places = TextPart(name).tokens(axis) if several else _written(name, words, axis)
            return places[number - 1 : number] if number else ()
        return _written(self.text, words, axis)

    @property
    def quoted(self) -> str | None:
        """The text between the quotes of a phrase; a quote in it is escaped by a backslash."""
        return QUOTE.sub(r"\1", self.text[1:-1]) if _between(self.text, "\"'") else None

    @property
    def place(self) -> tuple[str, int | None]:
        """For one of several words, cat#2: the word and its count."""
        name, _, place = self.text.rpartition("#")
        return (name, read_number(place)) if name else (self.text, None)


def _classes(place: Place) -> set[str]:
    """What a place is part of: a class of tokens, a picture or a sound, a group (image 2, frame 1, genes)."""
    classes = {"special"} if place.special else {"punctuation"} if all_punctuation(place.text) else set()
    classes |= {"image", "video"} if place.pictured else {"sound"} if place.heard else set()
    return classes | ({place.text.partition(GROUP_MARK)[0]} - CLASSES if GROUP_MARK in place.text else set())


def word_groups(axis: Axis) -> tuple[tuple[Place, Group], ...]:
    """Every word of an axis, and every token outside words, with its tokens."""
    coarsening = coarsen_axis(axis, words=True)
    groups = (tuple(coarsening.tokens(number)) for number in range(len(coarsening.places)))
    return tuple(zip(coarsening.places, groups, strict=True))


def part_of(text: str) -> TextPart:
    """A part as written. Raises ``SelectionError`` for an invalid regular expression."""
    if text[0] in "+-" and read_number(text[1:]) is not None:
        return TextPart(text, int(text))
    part = TextPart(text)
    for name in (text, part.place[0]):
        if _between(name, "/"):
            _matching(name, ())
    return part


def _between(text: str, marks: str) -> bool:
    """Whether something stands between two of these marks."""
    return len(text) > 2 and text[0] == text[-1] and text[0] in marks


def _matching(text: str, words: Sequence[tuple[Place, Group]]) -> tuple[Group, ...]:
    """The words that match the regular expression between two slashes."""
    try:
        with deadline():
            pattern = re.compile(text[1:-1])
        with deadline():
            return tuple(group for place, group in words if pattern.search(place.text.strip()))
    except RecursionError:
        raise SelectionError(f"{text[:60]} is nested too deep for a regular expression") from None
    except (re.error, OverflowError, MemoryError) as error:
        raise SelectionError(f"{text[:60]} is not a regular expression: {error}") from error
    except OutOfTime as late:
        why = "write it without repeats of repeats, like (a+)+"
        raise SelectionError(f"{text[:60]} {late}: {why}") from None


def _written(name: str, words: Sequence[tuple[Place, Group]], axis: Axis) -> tuple[Group, ...]:
    """The places of a word: as written, or else in any case and without punctuation (``mat.``, ``[CLS]``), or
    else as a tokenizer cuts it at punctuation (don't, U.S., 1,995).
    """
    exact = tuple(group for place, group in words if name in (_known(place.text), place.label))
    folded = name.casefold()
    alike = exact or tuple(group for place, group in words if folded in place_names(place))
    return alike or tuple(_phrase(name, axis))


def place_names(place: Place) -> tuple[str, ...]:
    """Possible lower-case names of a place: as it is, without its punctuation, without its picture."""
    name = _known(place.text).casefold()
    if place.heard:
        return name, place.moment, place.letters.casefold() or name
    alone = FIRST.sub("", name) if place.pictured else name.partition(GROUP_MARK)[2] or name
    return name, name.strip(punctuation), name.removeprefix("patch "), alone


def _phrase(phrase: str, axis: Axis) -> Iterator[Group]:
    """Where the tokens of a phrase stand; parts of a longer word do not match."""
    if isinstance(axis, range):
        return
    text, spans, every = "", [], places(axis)
    for before, place in zip((None, *every), every, strict=False):
        begin, known = len(text), _known(place.text)
        text += continue_text(before, replace(place, text=known)) if before else known
        spans.append((min(begin, len(text) - len(known)), len(text)))  # parts of a character have one place
    pieces = re.findall(r"\w+|[^\w\s]", phrase)
    letters = [letter for letter in phrase if not letter.isspace()]  # where words are not separated by spaces
    for each in (pieces, letters):
        pattern = r"\s*".join(map(re.escape, each))
        matches = [*re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)] if pattern else []
        if matches:
            break
    for match in matches:
        group = tuple(
            number
            for number, (begin, end) in enumerate(spans)
            if begin < match.end() and end > match.start() and not axis[number].special
        )
        if group:
            yield group


def _known(text: str) -> str:
    """The text's own part of a token, without the mark for unknown tokens."""
    return UNKNOWN_END.sub("", text.strip())


SPACE = re.compile(r"\s*")

MAX_GAP_CHARACTERS = 16  # characters that may separate a token from the next, per token not found


def locate_tokens(tokens: Sequence[Token], text: str) -> list[tuple[int, int] | None]:
    """The characters that each token covers: ``None`` for a special one, none if not found.

    Tokens are searched for in order, near the end of the last one, and farther the more were not found
    since: a tokenizer drops spaces, changes some letters, and marks unknown words after their text.
    """
    places: list[tuple[int, int] | None] = []
    at = near = 0
    for token in tokens:
        if token.special:
            places.append(None)
            continue
        spelled = token.text.strip()
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        near += MAX_GAP_CHARACTERS + len(spelled)
        begin = at
        for piece in filter(None, dict.fromkeys((spelled, spelled.partition(" ")[0]))):
            place = text.find(piece, at, at + near)
            if place >= 0:
                begin, at, near = place, place + len(piece), 0
                break
        places.append((begin, at))
    return places


CUTS = {
    "sentence": re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’)\]]))\s+(?=[^\sa-z])|(?<=[。！？])|\n\s*\n"),
    "line": re.compile(r"\n+"),
    "paragraph": re.compile(r"\n\s*\n"),
}
"""What separates two parts. A sentence ends at . ! or ? before a space and no lower-case letter."""

MARK = re.compile(r"\[\[([^\[\]:]{1,40}):((?:(?!\[\[).)*?)\]\]", re.S)
"""A part that the text itself names: ``[[question: Who slept?]]``; an unclosed one stops at the next."""

Begins: TypeAlias = Iterable[tuple[str, int]]  # names of parts, and where they begin in the text

MOST_MARKED = 16 * MOST_CHARACTERS
"""Most characters of a text with marks, or of a file of parts: many more than the plain text may have."""

LONGEST_NAME = 24


@record("a part")
class Span:
    """A named part: the tokens ``start`` to ``stop - 1``."""

    name: Annotated[str, Meaning("its name")]
    start: Annotated[int, Meaning("its first token")]
    stop: Annotated[int, Meaning("the token after its last")]


def read_marks(text: str) -> tuple[str, Sequence[tuple[str, int]]]:
    """A text without its marks, and where each part begins in it: ``[[name: ...]]``, and what is between.

    Raises ``InputError`` for a text without marks, or with far more marks than text.
    """
    if len(text) > MOST_MARKED:
        raise InputError(
            f"with its marks, the text has {len(text):,} characters: shorten it to {MOST_MARKED:,}"
        )
    first, *others = MARK.split(text)  # text; then a mark's name, what it marks, and the text behind it
    if not others:
        raise InputError("the text has no marks: write [[question: Who slept?]] around each part")
    pieces = [("", first)]
    for name, marked, behind in zip(*[iter(others)] * 3, strict=True):
        pieces += [(name.strip(), marked.strip()), ("", behind)]
    ends = accumulate(len(piece) for _, piece in pieces)
    places = zip(pieces, chain((0,), ends), strict=False)
    begins = [(name, at) for (name, piece), at in places if name or piece.strip()]
    return "".join(piece for _, piece in pieces), begins


def cut_text(text: str, way: str) -> Iterator[tuple[str, int]]:
    """Where sentences, lines or paragraphs begin, by number and first words; few are read to the end."""
    ends = chain((match.end() for match in CUTS[way].finditer(text)), (len(text),))
    begins = (begin for begin, end in pairwise(chain((0,), ends)) if text[begin:end].strip())
    for number, (begin, end) in enumerate(pairwise(chain(begins, (len(text),))), 1):
        words = " ".join(text[begin:end].split())
        short = words if len(words) <= LONGEST_NAME else f"{words[: LONGEST_NAME - 1].rstrip()}…"
        yield f"{number} {short}", begin


def spans_of(tokens: Sequence[Token], text: str, parts: Begins) -> tuple[Span, ...]:
    """The parts of a text as runs of its tokens; each special token is its own part.

    ``parts`` are names and where in the text they begin; those after the last token are ignored.
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

    Documents, which stand where the template puts them, are parts where it spells their texts. Raises
    ``InputError`` for a message that cannot be found among the tokens.
    """

    def letters(text: str) -> str:  # without spaces and capitals, which tokenizers may drop
        return "".join(text.split()).casefold()

    spelled = [letters(token.text if token.adds is None else token.adds) for token in tokens]
    owners = [number for number, text in enumerate(spelled) for _ in text]  # [letter]
    whole, at = "".join(spelled), 0
    labels = [(-1, "template")] * len(tokens)
    # documents first, the longest before those that it may contain; messages in their order
    order = sorted(
        enumerate(messages), key=lambda one: -len(one[1].content) if one[1].role == DOCUMENT else 1
    )
    for number, message in order:
        wanted, anywhere = letters(message.content), message.role == DOCUMENT
        place = whole.find(wanted, 0 if anywhere else at)
        if place < 0 and not anywhere:
            raise InputError(
                f"the {message.role}'s message cannot be found in what the model reads of the chat"
            )
        if place < 0 or not wanted:
            continue
        stop = place + len(wanted)
        for owner in range(owners[place], owners[stop - 1] + 1):
            labels[owner] = (number, message.role)
        if anywhere:
            whole = f"{whole[:place]}{chr(0) * len(wanted)}{whole[stop:]}"
        else:
            at = stop
    return _runs(labels)


def read_parts(written: str) -> tuple[tuple[str, int], ...]:
    """Where parts begin that a JSON file names: ``{"question": [0, 40]}``, each with its first character and
    the one behind its last; what is between them is a rest.

    Raises ``InputError`` for anything else.
    """
    if len(written) > MOST_MARKED:
        raise InputError(f"the file of parts has {len(written):,} characters: shorten it to {MOST_MARKED:,}")
    try:
        named = read(Mapping[str, tuple[int, int]], parse_json(written))
    except ValueError:
        named = {}
    parts = sorted((start, stop, name) for name, (start, stop) in named.items())
    runs = [0, *(each for start, stop, _ in parts for each in (start, stop))]
    if not parts or runs != sorted(runs):
        raise InputError(
            'a file of parts is JSON, {"question": [0, 40], "fact": [41, 90]}: the first character of each '
            "part and the one behind its last, one part behind the other"
        )
    begins = [("", 0)] if parts[0][0] else []
    for (start, stop, name), (after, *_) in zip(parts, [*parts[1:], (-1,)], strict=True):
        begins += [(name, start)] + ([("", stop)] if stop != after else [])
    return tuple(begins)


def segments(tokens: Sequence[Token]) -> tuple[Span, ...]:
    """The texts of a pair, or a text and its picture or sound, as parts; a special token is its own part."""
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


def cut_input(prepared: ModelInput, by: str, begins: Begins | None = None) -> tuple[Span, ...]:
    """The parts of the input, and the generated text after it as one more.

    ``by`` is one of ``CUTS``, "segment", "modality", "role" or "group"; ``begins`` are explicit parts and
    where they begin in the text. Raises ``InputError`` if the input has no such parts.
    """
    read, rest = prepared.tokens[: prepared.read_count], "written"
    by = "" if begins is not None else by
    if by not in ("", *CUTS, "segment", "modality", "role", "group"):
        raise InputError(
            f"a text is cut by {', '.join(CUTS)}, segment, modality, role or group, not by {by!r}"
        )
    if by == "modality" and all(token.id < SEPARATOR_ID for token in read):
        raise InputError("the input is text only: --parts modality needs a picture or a sound, too")
    if by in ("segment", "modality"):
        cut = segments(read)
    elif by == "group":
        if not any(GROUP_MARK in token.text for token in read):
            raise InputError("no position has a group: give --labels FILE with columns label and group")
        cut = _runs([(0, token.text.partition(GROUP_MARK)[0]) for token in read])
    elif by == "role":
        if not prepared.messages:
            raise InputError("the input holds no chat: give the text with --chat")
        cut, rest = spans_of_roles(read, prepared.messages), "assistant"
    elif prepared.text is None:
        raise InputError("the input holds no plain text to cut: give the text")
    else:
        text = prepared.text[:MOST_CHARACTERS]  # no token stands for what comes after them
        cut = spans_of(read, text, cut_text(text, by) if begins is None else begins)
    if prepared.read_count < len(prepared.tokens):
        cut += (Span(rest, prepared.read_count, len(prepared.tokens)),)
    return cut


def _runs(labels: Sequence[tuple[int, str]]) -> tuple[Span, ...]:
    """Neighbours with the same label as one part; repeated names are numbered."""
    spans: list[Span] = []
    names: dict[str, int] = {}
    start = 0
    for (_, name), group in groupby(labels):
        stop = start + len(list(group))
        names[name] = names.get(name, 0) + 1
        spans.append(Span(name if names[name] == 1 else f"{name}#{names[name]}", start, stop))
        start = stop
    return tuple(spans)
