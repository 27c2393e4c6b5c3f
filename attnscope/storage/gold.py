"""Files of texts with paired words: treebanks, JSON lines, word alignments."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, pairwise, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from attnscope.errors import InputError
from attnscope.storage.corpus import Corpus, CorpusText, GoldPair, Span, full_lines, read_object, require_text
from attnscope.storage.files import Line, hash_file, read_lines
from attnscope.text import MOST_CHARACTERS, read_number

MOST_LABEL_CHARACTERS = 60


@dataclass
class GoldFile(Corpus):
    """A file of texts with pairs. ``directions`` names those asked: left to right, and back.

    ``links`` says that the pairs are a full alignment of two texts, which has an error rate; its directions
    are those of ``ROWS``.
    """

    path: Path
    directions: tuple[str, ...] = ("from → to", "to → from")
    links: bool = False

    def __post_init__(self) -> None:
        self.name, self.size, self.files = str(self.path), self.path.stat().st_size, [self.path]

    def fingerprint(self) -> str:
        """Identifies these questions: how they are asked, and a hash of the files."""
        facts = type(self).__name__, self.directions, self.links, *map(hash_file, self.files)
        return sha256(repr(facts).encode()).hexdigest()


def words_of(text: str) -> tuple[Span, ...]:
    """The words between spaces. Raises ``ValueError`` for a text of too many characters."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a text has {len(text):,} characters, and may have {MOST_CHARACTERS:,}")
    return tuple(match.span() for match in re.finditer(r"\S+", text))


def clean_label(label: str) -> str:
    """A printable label. Raises ``ValueError``."""
    if not label or len(label) > MOST_LABEL_CHARACTERS or not label.isprintable():
        raise ValueError(f"a label is 1 to {MOST_LABEL_CHARACTERS} characters that can be printed")
    return label


ENTITY_MARK = re.compile(r"\((?P<opened>[^()]*)(?P<alone>\))?|(?P<closed>[^()]+)\)")
ENTITY_FIELDS = ("eid", "GRP")  # the name of the entity field in ``# global.Entity``

Mention: TypeAlias = tuple[str, int]  # its entity, and its head word: the one whose own head lies outside it


def read_mentions(column: Sequence[str], heads: Sequence[int], place: int) -> list[Mention]:
    """The mentions of a sentence, in the order of their head words.

    ``column`` is the Entity of each word, ``heads`` the head of each word. A mention in several pieces
    counts by its first piece. Raises ``ValueError`` for a mention that lacks its beginning or its end.
    """
    opened: dict[str, list[int]] = {}
    mentions: list[Mention] = []
    for word, marks in enumerate(column):
        if ENTITY_MARK.sub("", marks):
            problem = f"the Entity of word {word + 1} is {marks[:20]!r}"
            raise ValueError(f"{problem}: write (e1-person, e1) or (e1)")
        for match in ENTITY_MARK.finditer(marks):
            name = match["closed"]
            if name is None:
                name = next(iter(match["opened"].split("-")[place : place + 1]), "")
                opened.setdefault(name, []).append(word)
            if match["closed"] or match["alone"]:
                if not opened.get(name):
                    raise ValueError(f"entity {name[:20]!r} ends at word {word + 1} and begins nowhere")
                start = opened[name].pop()
                entity, _, piece = name.partition("[")
                if entity and (not piece or piece.startswith("1/")):
                    outside = (at for at in range(start, word + 1) if not start <= heads[at] <= word)
                    mentions.append((entity, next(outside, word)))
    for name, words in opened.items():
        if words:
            raise ValueError(f"entity {name[:20]!r} begins at word {words[0] + 1} and ends nowhere")
    return sorted(mentions, key=itemgetter(1))


COLUMNS = 10
FORM, HEAD, RELATION, MISC = 1, 6, 7, 9

DOCUMENT_WORDS = 128  # words of a document that are read together for coreference, as in Clark et al. 2019.

COREFERENCE = "coreference"

MOST_SENTENCE_WORDS = 2000  # most words of a sentence


class Sentence(NamedTuple):
    """The lines of a sentence, and what those before it say."""

    lines: Sequence[Line]
    opens: bool  # whether it begins a document
    entity: int  # where an entity's name stands among its parts


def _read_sentence(sentence: Sentence) -> tuple[CorpusText, Sequence[Mention]]:
    """A sentence with its dependency relations, and the mentions from its Entity column."""
    table = _columns(sentence.lines)
    text, words = _spell(table)
    rows = [row for row in table if row[0].isdecimal()]
    heads, pairs = list[int](), list[GoldPair]()
    for word, row in enumerate(rows):
        number, label = read_number(row[HEAD]), clean_label(row[RELATION])
        if number is None or number > len(rows):
            raise ValueError(f"word {row[0]} has no head among the {len(rows):,} words of its sentence")
        heads.append(number - 1)
        pairs += [GoldPair((word,), (number - 1,), label)] if number else []
    mentions = read_mentions([_misc(row).get("Entity", "") for row in rows], heads, sentence.entity)
    return CorpusText("", text, words=words, pairs=tuple(pairs)), mentions


def _columns(lines: Sequence[Line]) -> list[list[str]]:
    rows, size = list[list[str]](), 0
    for line in lines:
        where = f"line {line.number:,}"
        rows.append(line.text.split("\t"))
        size += len(line.text)
        if line.fault:
            raise ValueError(f"{where}: {line.fault}")
        if len(rows[-1]) != COLUMNS:
            raise ValueError(f"{where}: it has {len(rows[-1])} columns, not {COLUMNS}")
        if len(rows) > MOST_SENTENCE_WORDS or size > MOST_CHARACTERS:
            limits = f"{MOST_SENTENCE_WORDS:,} lines, and {MOST_CHARACTERS:,} characters in them"
            raise ValueError(f"a sentence may have {limits}")
    return rows


@dataclass
class Conllu(GoldFile):
    """A treebank; ``coreference`` asks for earlier mentions instead of dependency relations."""

    coreference: bool = False

    def contents(self) -> Iterator[tuple[str, int, Sentence]]:
        """The sentences."""
        lines: list[Line] = []
        first, size, done, entity, opens = 1, 0, 0, 0, False
        for line in chain(read_lines(self.path), [Line(0, "", 0)]):  # an empty line ends a sentence
            done = line.done or done
            if line.text.startswith("#"):
                name, _, value = line.text[1:].partition("=")
                opens |= name.split()[:1] == ["newdoc"]
                if name.strip() == "global.Entity":
                    names = value.strip().split("-")
                    entity = next((names.index(each) for each in ENTITY_FIELDS if each in names), 0)
            elif line.fault or line.text.strip():
                if len(lines) <= MOST_SENTENCE_WORDS and size <= MOST_CHARACTERS:  # beyond, it is refused
                    lines.append(line)
                    size += len(line.text)
            else:
                if lines:
                    yield f"line {first:,}", done, Sentence(lines, opens, entity)
                lines, first, size, opens = [], line.number + 1, 0, False

    def read(self, content: Sentence) -> CorpusText:
        """One sentence with its dependency relations."""
        return _read_sentence(content)[0]

    def entries(self) -> Iterator[CorpusText]:
        """One entry per sentence; with coreference, up to ``DOCUMENT_WORDS`` words of a document."""
        if not self.coreference:
            yield from super().entries()
            return
        together: list[tuple[CorpusText, Sequence[Mention]]] = []
        for where, done, sentence in self.contents():
            try:
                gold, mentions = _read_sentence(sentence)
            except ValueError as error:
                yield CorpusText(where, "", str(error), done)
                continue
            size = len(gold.words) + sum(len(each.words) for each, _ in together)
            if together and (sentence.opens or size > DOCUMENT_WORDS):
                yield _join(together)
                together = []
            together.append((gold._replace(where=where, done=done), mentions))
        if together:
            yield _join(together)


def _spell(rows: list[list[str]]) -> tuple[str, tuple[Span, ...]]:
    text, words, space = "", list[Span](), ""
    joined, last = "", 0  # the rest of a multiword token, whose words follow
    for row in rows:
        form = row[FORM]
        first, dash, stop = row[0].partition("-")
        spaced = "" if _misc(row).get("SpaceAfter") == "No" else " "
        if "." in row[0]:
            continue  # a word left out of the text
        ends = read_number(stop)
        if dash and ends is not None and read_number(first) == len(words) + 1 > last:
            text += space + form
            joined, last, space = form, ends, spaced
        elif row[0] != str(len(words) + 1):
            raise ValueError(f"word {row[0][:9]!r} does not follow word {len(words)}")
        elif len(words) < last:
            # not spelled out, as in du = de + le: the first word stands for both
            place, size = (joined.find(form), len(form)) if form in joined else (0, len(joined))
            begin = len(text) - len(joined) + place
            words.append((begin, begin + size))
            joined = joined[place + size :]
        else:
            text += space
            words.append((len(text), len(text) + len(form)))
            text += form
            space = spaced
    if not text.strip():
        raise ValueError("it holds no words")
    return text, tuple(words)


def _misc(row: list[str]) -> dict[str, str]:
    """The last column: ``SpaceAfter=No|Entity=(e1)``."""
    parts = (part.partition("=") for part in row[MISC].split("|"))
    return {name: value for name, _, value in parts}


def _join(sentences: Sequence[tuple[CorpusText, Sequence[Mention]]]) -> CorpusText:
    """Sentences as one text, with a pair for each mention and the earlier ones."""
    text, words, pairs = "", list[Span](), list[GoldPair]()
    earlier: dict[str, list[int]] = {}
    for gold, mentions in sentences:
        text += " " if text else ""
        before = len(words)
        words += [(start + len(text), stop + len(text)) for start, stop in gold.words]
        text += gold.text
        for entity, place in mentions:
            word, mentioned = before + place, earlier.setdefault(entity, [])
            if word not in mentioned:
                pairs += [GoldPair((word,), tuple(mentioned), COREFERENCE)] if mentioned else []
                mentioned.append(word)
    first, last = sentences[0][0], sentences[-1][0]
    return CorpusText(first.where, text, "", last.done, tuple(words), tuple(pairs))


EXAMPLE_LINE = '{"text": "The cat sat.", "pairs": [[2, 1, "subject"]]}'

MOST_SIDE_CHARACTERS = 400  # most characters of one side of a pair: a phrase, not a text
UNNAMED = "all"  # the label of an unlabelled pair
TEXT_SEPARATOR = "|||"


class JsonLines(GoldFile):
    """One object per line: ``text``, and ``pairs`` of from, to and a label.

    From and to are each the number of a word (words are separated by spaces, from 0) or the characters
    ``[first, one after the last]``.
    """

    def contents(self) -> Iterator[tuple[str, int, Line]]:
        """The lines."""
        return full_lines(self.path)

    def read(self, content: Line) -> CorpusText:
        """One line."""
        fields = read_object(content)
        if not isinstance(fields, dict) or not isinstance(fields.get("pairs"), list):
            raise ValueError(f"write {EXAMPLE_LINE}")
        text = require_text(fields.get("text"))
        spans, sides, labels = words_of(text), list[Span](), list[str]()  # two sides of each label
        for pair in fields["pairs"]:
            if not isinstance(pair, list) or len(pair) not in (2, 3):
                raise ValueError("a pair is [from, to] or [from, to, label]")
            left, right, label = (*pair, UNNAMED)[:3]
            if not isinstance(label, str):
                raise ValueError("the label of a pair is a text")
            sides += [_span(left, text, spans), _span(right, text, spans)]
            labels.append(clean_label(label))
        words = _cut(text, sides)  # none crosses an edge of a side
        numbers = [
            tuple(range(*(bisect_left(words, edge, key=itemgetter(0)) for edge in side))) for side in sides
        ]
        pairs = tuple(map(GoldPair, numbers[::2], numbers[1::2], labels))
        return CorpusText("", text, words=words, pairs=pairs)


def _span(place: Any, text: str, spans: Sequence[Span]) -> Span:
    """The characters named by a word's number, or by two numbers."""
    if type(place) is int and 0 <= place < len(spans):
        return spans[place]
    if isinstance(place, list) and len(place) == 2 and all(type(number) is int for number in place):
        start, stop = place
        if 0 <= start < stop <= min(len(text), start + MOST_SIDE_CHARACTERS) and text[start:stop].strip():
            return start, stop
    raise ValueError(
        f"{json.dumps(place)[:40]} is no place in its text: name one of the words 0 to {len(spans) - 1}, or "
        f"up to {MOST_SIDE_CHARACTERS} characters [first, behind the last] of its {len(text):,}"
    )


def _cut(text: str, spans: Sequence[Span]) -> tuple[Span, ...]:
    """The words of a text, split also where a span begins or ends."""
    edges = sorted({edge for span in spans for edge in span})
    words = []
    for start, stop in words_of(text):
        inside = edges[bisect_left(edges, start + 1) : bisect_left(edges, stop)]
        words += list(pairwise((start, *inside, stop)))
    return tuple(words)


ROWS: tuple[str, ...] = ("predicting", "reading")
"""Which rows are a target word's: those that predict its tokens, or those that have read them."""

LINK = re.compile(r"(\d{1,6})([-?p])(\d{1,6})", re.ASCII)
ALIGNED = "aligned"


@dataclass
class Pharaoh(GoldFile):
    """Lines of ``source ||| target``, with source-target links for each line in the file ``alignments``."""

    alignments: Path = Path()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.files.append(self.alignments)

    def contents(self) -> Iterator[tuple[str, int, tuple[Line, Line]]]:
        """Each line with its links."""
        none = Line(0, "", 0)
        for both in zip_longest(read_lines(self.path), read_lines(self.alignments), fillvalue=none):
            line, links = both
            if not (line.number and links.number) or any(each.fault or each.text.strip() for each in both):
                yield f"line {line.number or links.number:,}", line.done, both
            if not (line.number and links.number):
                return

    def read(self, content: tuple[Line, Line]) -> CorpusText:
        """One pair of texts."""
        line, links = content
        if not (line.number and links.number):
            both = self.path, self.alignments
            short, long = both if links.number else both[::-1]
            raise ValueError(f"{short} ends before {long}: each text needs its line of links")
        if line.fault or links.fault:
            raise ValueError(line.fault or links.fault)
        source, _, target = (part.strip() for part in line.text.partition(TEXT_SEPARATOR))
        if not source or not target or TEXT_SEPARATOR in target:
            raise ValueError(f"write source {TEXT_SEPARATOR} target")
        words, target_words = words_of(source), words_of(target)
        pairs = []
        for link in links.text.split():
            match = LINK.fullmatch(link)
            if match is None:
                raise ValueError(f"{link[:20]!r} is not a link: write 0-0, or 0?0 for a possible one")
            one, other = int(match[1]), int(match[3])
            if one >= len(words) or other >= len(target_words):
                counts = f"{len(words):,} source and {len(target_words):,} target words"
                raise ValueError(f"the link {link} is outside of {counts}")
            pairs.append(GoldPair((other,), (one,), ALIGNED, match[2] == "-"))
        return CorpusText("", source, "", 0, words, tuple(pairs), target, target_words)


def read_gold(
    path: Path, *, alignments: Path | None = None, coreference: bool = False, rows: str | None = None
) -> GoldFile:
    """The questions of a file: ``.conllu``, ``.jsonl``, or texts with ``alignments`` (of one of ``ROWS``).

    Raises ``InputError`` for any other file.
    """
    for file in (path, alignments):
        if file is not None and not file.is_file():
            raise InputError(f"no such file: {file}")
    if alignments is not None:
        return Pharaoh(path, ROWS if rows is None else (rows,), True, alignments)
    kind = path.suffix.lower()
    if coreference and kind != ".conllu":
        raise InputError(f"{path} has no Entity column: coreference is read from a .conllu file")
    if kind == ".conllu":
        directions = ("later → earlier", "earlier → later") if coreference else ("dep → head", "head → dep")
        return Conllu(path, directions, coreference=coreference)
    if kind in (".jsonl", ".ndjson"):
        return JsonLines(path)
    raise InputError(
        f"cannot tell what questions {path} holds: give a .conllu or .jsonl file, or lines of "
        "'source ||| target' with --alignments FILE"
    )
