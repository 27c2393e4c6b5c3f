"""Files of texts with paired words: treebanks, JSON lines, word alignments."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, pairwise, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from attnscope.errors import InputError
from attnscope.storage.corpus import TextSource
from attnscope.storage.files import Line, hash_file, parse_json, read_lines
from attnscope.text import MOST_CHARACTERS, read_number

Span: TypeAlias = tuple[int, int]  # the first character of a text, and the one after the last

LONGEST_LABEL = 60


class GoldPair(NamedTuple):
    """Words that should look at words, by number; any of ``right`` is a right answer.

    ``sure`` is False for a link between translations that annotators marked as possible.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    label: str
    sure: bool = True


@dataclass(frozen=True)
class GoldText:
    """A ``CorpusText`` with its words and pairs.

    With a ``target``, its translation, the left words of the pairs are the target's and the right words the
    text's; otherwise both are the text's.
    """

    where: str
    text: str
    words: tuple[Span, ...] = ()
    pairs: tuple[GoldPair, ...] = ()
    done: int = 0
    target: str | None = None
    target_words: tuple[Span, ...] = ()
    fault: str = ""


@dataclass
class GoldFile(TextSource[GoldText]):
    """A file of texts with pairs. ``ways`` names the directions asked: left to right, and back.

    ``links`` says that the pairs are a full alignment of two texts, which has an error rate.
    """

    path: Path
    ways: tuple[str, ...] = ("from → to", "to → from")
    links: bool = False

    def __post_init__(self) -> None:
        self.name, self.size, self.files = str(self.path), self.path.stat().st_size, [self.path]

    def fingerprint(self) -> str:
        """Identifies these questions: how they are asked, and a hash of the files."""
        digest = sha256(repr((type(self).__name__, self.ways, self.links)).encode())
        for path in self.files:
            hash_file(digest, path)
            digest.update(b"\0")
        return digest.hexdigest()


def words_of(text: str) -> tuple[Span, ...]:
    """The words between spaces. Raises ``ValueError`` for a text of too many characters."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a text has {len(text):,} characters, and may have {MOST_CHARACTERS:,}")
    return tuple(match.span() for match in re.finditer(r"\S+", text))


def clean_label(label: str) -> str:
    """A printable label. Raises ``ValueError``."""
    if not label or len(label) > LONGEST_LABEL or not label.isprintable():
        raise ValueError(f"a label is 1 to {LONGEST_LABEL} characters that can be printed")
    return label


MARK = re.compile(r"\((?P<opened>[^()]*)(?P<alone>\))?|(?P<closed>[^()]+)\)")
NAMES = ("eid", "GRP")  # the name of the entity field in ``# global.Entity``

Mention: TypeAlias = tuple[str, int]  # its entity, and its head word: the one whose own head lies outside it


def read_mentions(column: Sequence[str], heads: Sequence[int], place: int) -> list[Mention]:
    """The mentions of a sentence, in the order of their head words.

    ``column`` is the Entity of each word, ``heads`` the head of each word. A mention in several pieces
    counts by its first piece. Raises ``ValueError`` for a mention that lacks its beginning or its end.
    """
    opened: dict[str, list[int]] = {}
    spans: list[tuple[str, int, int]] = []
    for word, marks in enumerate(column):
        if MARK.sub("", marks):
            raise ValueError(
                f"the Entity of word {word + 1} is {marks[:20]!r}: write (e1-person, e1) or (e1)"
            )
        for match in MARK.finditer(marks):
            if match["closed"] is None:
                parts = match["opened"].split("-")
                name = parts[place] if place < len(parts) else ""
                if match["alone"]:
                    spans.append((name, word, word))
                else:
                    opened.setdefault(name, []).append(word)
            else:
                name = match["closed"]
                if not opened.get(name):
                    raise ValueError(f"entity {name[:20]!r} ends at word {word + 1} and begins nowhere")
                spans.append((name, opened[name].pop(), word))
    for name, words in opened.items():
        if words:
            raise ValueError(f"entity {name[:20]!r} begins at word {words[0] + 1} and ends nowhere")
    mentions = []
    for name, start, stop in spans:
        entity, _, piece = name.partition("[")
        if entity and (not piece or piece.startswith("1/")):
            outside = (word for word in range(start, stop + 1) if not start <= heads[word] <= stop)
            mentions.append((entity, next(outside, stop)))
    return sorted(mentions, key=itemgetter(1))


COLUMNS = 10
FORM, HEAD, RELATION, MISC = 1, 6, 7, 9

WORDS = 128  # words of a document that are read together for coreference, as in Clark et al. 2019.

COREFERENCE = "coreference"

LONGEST = 2000  # most words of a sentence


@dataclass(frozen=True)
class Sentence:
    """A sentence without pairs, and the head (-1: the root) and relation of each word.

    ``mentions`` come from the Entity column; ``opens`` says that the sentence begins a document.
    """

    gold: GoldText
    opens: bool
    heads: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()
    mentions: tuple[Mention, ...] = ()


def _read_sentence(lines: Sequence[Line], where: str, opens: bool, entity: int, done: int) -> Sentence:
    try:
        table = _columns(lines)
        text, words = _spell(table)
        rows = [row for row in table if row[0].isdecimal()]
        numbers = [read_number(row[HEAD]) for row in rows]
        heads = tuple(number - 1 for number in numbers if number is not None and number <= len(rows))
        if len(heads) < len(rows):
            bad = next(row[0] for row, n in zip(rows, numbers, strict=True) if n is None or n > len(rows))
            raise ValueError(f"word {bad} has no head among the {len(rows):,} words of its sentence")
        relations = tuple(clean_label(row[RELATION]) for row in rows)
        mentions = tuple(read_mentions([_misc(row).get("Entity", "") for row in rows], heads, entity))
    except ValueError as error:
        return Sentence(GoldText(where, "", done=done, fault=str(error)), opens)
    return Sentence(GoldText(where, text, words, done=done), opens, heads, relations, mentions)


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
        if len(rows) > LONGEST or size > MOST_CHARACTERS:
            limits = f"{LONGEST:,} lines, and {MOST_CHARACTERS:,} characters in them"
            raise ValueError(f"a sentence may have {limits}")
    return rows


@dataclass
class Conllu(GoldFile):
    """A treebank; ``coreference`` asks for earlier mentions instead of dependency relations."""

    coreference: bool = False

    def entries(self) -> Iterator[GoldText]:
        """One entry per sentence; with coreference, up to ``WORDS`` words of a document."""
        if self.coreference:
            yield from _documents(self.sentences())
        for sentence in self.sentences() if not self.coreference else ():
            pairs = tuple(
                GoldPair((word,), (head,), relation)
                for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
                if head >= 0
            )
            yield replace(sentence.gold, pairs=pairs)

    def sentences(self) -> Iterator[Sentence]:
        """The sentences; unreadable ones with their fault."""
        lines: list[Line] = []
        first, size, done, entity, opens = 1, 0, 0, 0, False
        for line in chain(read_lines(self.path), [Line(0, "", 0)]):  # an empty line ends a sentence
            done = line.done or done
            if line.text.startswith("#"):
                name, _, value = line.text[1:].partition("=")
                opens |= name.split()[:1] == ["newdoc"]
                if name.strip() == "global.Entity":
                    names = value.strip().split("-")
                    entity = next((names.index(each) for each in NAMES if each in names), 0)
            elif line.fault or line.text.strip():
                if len(lines) <= LONGEST and size <= MOST_CHARACTERS:  # beyond, it is refused
                    lines.append(line)
                    size += len(line.text)
            else:
                if lines:
                    yield _read_sentence(lines, f"line {first:,}", opens, entity, done)
                lines, first, size, opens = [], line.number + 1, 0, False


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


def _documents(sentences: Iterator[Sentence]) -> Iterator[GoldText]:
    """Join neighbouring sentences of a document, with a pair for each mention and the earlier ones."""
    together: list[Sentence] = []
    for sentence in sentences:
        if sentence.gold.fault:
            yield sentence.gold
            continue
        size = sum(len(each.gold.words) for each in (*together, sentence))
        if together and (sentence.opens or size > WORDS):
            yield _join(together)
            together = []
        together.append(sentence)
    if together:
        yield _join(together)


def _join(sentences: list[Sentence]) -> GoldText:
    text, words = "", list[Span]()
    earlier: dict[str, list[int]] = {}
    pairs = []
    for sentence in sentences:
        text += " " if text else ""
        before = len(words)
        words += [(start + len(text), stop + len(text)) for start, stop in sentence.gold.words]
        text += sentence.gold.text
        for entity, place in sentence.mentions:
            word, known = before + place, earlier.setdefault(entity, [])
            if word not in known:
                pairs += [GoldPair((word,), tuple(known), COREFERENCE)] if known else []
                known.append(word)
    return GoldText(sentences[0].gold.where, text, tuple(words), tuple(pairs), sentences[-1].gold.done)


EXAMPLE = '{"text": "The cat sat.", "pairs": [[2, 1, "subject"]]}'

LONGEST_SIDE = 400  # most characters of one side of a pair: a phrase, not a text
UNNAMED = "all"  # the label of an unlabelled pair


class JsonLines(GoldFile):
    """One object per line: ``text``, ``pairs`` of from, to and a label, and for translations a ``target``.

    From and to are each the number of a word (words are separated by spaces, from 0) or the characters
    ``[first, one after the last]``.
    """

    def entries(self) -> Iterator[GoldText]:
        """One text per line."""
        for line in read_lines(self.path):
            where = f"line {line.number:,}"
            if line.fault or line.text.strip():
                try:
                    yield _read_object(line, where)
                except ValueError as error:
                    yield GoldText(where, "", done=line.done, fault=str(error))


def _read_object(line: Line, where: str) -> GoldText:
    if line.fault:
        raise ValueError(line.fault)
    try:
        fields = parse_json(line.text)
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("pairs"), list):
        raise ValueError(f"write {EXAMPLE}")
    text = _as_text(fields.get("text"))
    target = None if fields.get("target") is None else _as_text(fields["target"])
    spans = words_of(text)
    left_text, left_spans = (text, spans) if target is None else (target, words_of(target))
    lefts, rights, labels = list[Span](), list[Span](), list[str]()
    for pair in fields["pairs"]:
        if not isinstance(pair, list) or len(pair) not in (2, 3):
            raise ValueError("a pair is [from, to] or [from, to, label]")
        left, right, label = (*pair, UNNAMED)[:3]
        if not isinstance(label, str):
            raise ValueError("the label of a pair is a text")
        lefts.append(_span(left, left_text, left_spans))
        rights.append(_span(right, text, spans))
        labels.append(clean_label(label))
    words = _cut(text, rights if target is not None else [*lefts, *rights])
    target_words = () if target is None else _cut(target, lefts)
    found = (
        [_inside(left, target_words or words) for left in lefts],
        [_inside(right, words) for right in rights],
    )
    pairs = tuple(map(GoldPair, *found, labels))
    return GoldText(where, text, words, pairs, line.done, target, target_words)


def _as_text(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError("a text is missing or empty")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate)") from None
    return given


def _span(given: Any, text: str, spans: Sequence[Span]) -> Span:
    """The characters named by a word's number, or by two numbers."""
    if type(given) is int and 0 <= given < len(spans):
        return spans[given]
    if isinstance(given, list) and len(given) == 2 and all(type(number) is int for number in given):
        start, stop = given
        if 0 <= start < stop <= min(len(text), start + LONGEST_SIDE) and text[start:stop].strip():
            return start, stop
    raise ValueError(
        f"{json.dumps(given)[:40]} is no place in its text: name one of the words 0 to {len(spans) - 1}, or "
        f"up to {LONGEST_SIDE} characters [first, behind the last] of its {len(text):,}"
    )


def _cut(text: str, spans: Sequence[Span]) -> tuple[Span, ...]:
    """The words of a text, split also where a span begins or ends."""
    edges = sorted({edge for span in spans for edge in span})
    words = []
    for start, stop in words_of(text):
        inside = edges[bisect_left(edges, start + 1) : bisect_left(edges, stop)]
        words += list(pairwise((start, *inside, stop)))
    return tuple(words)


def _inside(span: Span, words: Sequence[Span]) -> tuple[int, ...]:
    """The words inside a span; none crosses its edges."""
    return tuple(range(*(bisect_left(words, edge, key=itemgetter(0)) for edge in span)))


LINK = re.compile(r"(\d{1,6})([-?p])(\d{1,6})", re.ASCII)
BETWEEN = "|||"
ALIGNED = "aligned"


@dataclass
class Pharaoh(GoldFile):
    """Lines of ``source ||| target``, with source-target links for each line in the file ``alignments``."""

    alignments: Path = Path()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.files.append(self.alignments)

    def entries(self) -> Iterator[GoldText]:
        """One pair of texts per line."""
        lines = zip_longest(read_lines(self.path), read_lines(self.alignments), fillvalue=Line(0, "", 0))
        for line, links in lines:
            where = f"line {line.number or links.number:,}"
            fault = line.fault or links.fault
            if not line.number or not links.number:
                both = self.path, self.alignments
                short, long = both if links.number else both[::-1]
                fault = f"{short} ends before {long}: each text needs its line of links"
            if not fault and (line.text.strip() or links.text.strip()):
                try:
                    yield _read(line.text, links.text, where, line.done)
                except ValueError as error:
                    fault = str(error)
            if fault:
                yield GoldText(where, "", done=line.done, fault=fault)
            if not line.number or not links.number:
                return


def _read(line: str, links: str, where: str, done: int) -> GoldText:
    source, _, target = (part.strip() for part in line.partition(BETWEEN))
    if not source or not target or BETWEEN in target:
        raise ValueError(f"write source {BETWEEN} target")
    words, target_words = words_of(source), words_of(target)
    pairs = []
    for link in links.split():
        match = LINK.fullmatch(link)
        if match is None:
            raise ValueError(f"{link[:20]!r} is not a link: write 0-0, or 0?0 for a possible one")
        one, other = int(match[1]), int(match[3])
        if one >= len(words) or other >= len(target_words):
            both = f"{len(words):,} source and {len(target_words):,} target words"
            raise ValueError(f"the link {link} is outside of {both}")
        pairs.append(GoldPair((other,), (one,), ALIGNED, match[2] == "-"))
    return GoldText(where, source, words, tuple(pairs), done, target, target_words)


def read_gold(path: Path, *, alignments: Path | None = None, coreference: bool = False) -> GoldFile:
    """The questions of a file: ``.conllu``, ``.jsonl``, or texts with ``alignments``.

    Raises ``InputError`` for any other file.
    """
    for file in (path, alignments):
        if file is not None and not file.is_file():
            raise InputError(f"no such file: {file}")
    if alignments is not None:
        return Pharaoh(path, ("target → source",), True, alignments)
    kind = path.suffix.lower()
    if coreference and kind != ".conllu":
        raise InputError(f"{path} has no Entity column: coreference is read from a .conllu file")
    if kind == ".conllu":
        ways = ("later → earlier", "earlier → later") if coreference else ("dep → head", "head → dep")
        return Conllu(path, ways, coreference=coreference)
    if kind in (".jsonl", ".ndjson"):
        return JsonLines(path)
    raise InputError(
        f"cannot tell what questions {path} holds: give a .conllu or .jsonl file, or lines of "
        "'source ||| target' with --alignments FILE"
    )
