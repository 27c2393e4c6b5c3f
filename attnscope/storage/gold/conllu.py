"""Treebanks of Universal Dependencies (CoNLL-U): every dependency relation is a question.

The format is read here and not by a library: a fault is reported with its line, and what a stranger's file
says is checked before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from attnscope.storage.gold.entities import Mention, entity_place, read_mentions
from attnscope.storage.gold.texts import GoldFile, GoldText, Pair, Span, clean_label
from attnscope.storage.lines import Line, read_lines
from attnscope.text import MOST_CHARACTERS, read_number

COLUMNS = 10
FORM, HEAD, RELATION, MISC = 1, 6, 7, 9

WORDS = 128
"""Words of a document that are read together where coreference is asked, as by Clark et al. 2019."""

COREFERENCE = "coreference"

LONGEST = 2000
"""Words of a sentence; there is none so long."""


@dataclass(frozen=True)
class Sentence:
    """A sentence: its text, where its words stand in it, and for each its head (-1: the root) and relation.

    ``mentions`` are those of the Entity column; ``opens`` says that a document begins with it.
    """

    number: int  # of its first line
    text: str
    words: tuple[Span, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    mentions: tuple[Mention, ...]
    opens: bool
    done: int
    fault: str = ""


@dataclass
class _Block:
    """The lines of one sentence."""

    number: int
    rows: list[list[str]] = field(default_factory=list)
    size: int = 0
    opens: bool = False
    fault: str = ""

    def read(self, line: Line) -> None:
        """One more line, which is neither empty nor a comment; behind a fault nothing is kept."""
        if self.fault:
            return
        columns = line.text.split("\t")
        self.rows.append(columns)
        self.size += len(line.text)
        if line.fault:
            self.fault = f"line {line.number:,}: {line.fault}"
        elif len(columns) != COLUMNS:
            self.fault = f"line {line.number:,}: it has {len(columns)} columns, not {COLUMNS}"
        elif len(self.rows) > LONGEST or self.size > MOST_CHARACTERS:
            self.fault = f"a sentence may have {LONGEST:,} lines, and {MOST_CHARACTERS:,} characters in them"


@dataclass(frozen=True)
class Conllu(GoldFile):
    """A treebank; with ``coreference`` it is asked for earlier mentions in place of dependency relations."""

    coreference: bool = False

    def texts(self) -> Iterator[GoldText]:
        """A sentence each; with coreference up to ``WORDS`` words of a document."""
        if self.coreference:
            yield from _documents(self.sentences())
            return
        for sentence in self.sentences():
            pairs = tuple(
                Pair((word,), (head,), relation)
                for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
                if head >= 0
            )
            yield _text(sentence, pairs)

    def sentences(self) -> Iterator[Sentence]:
        """The sentences, those that cannot be read with their fault."""
        block = _Block(1)
        entity = done = 0
        for line in read_lines(self.path):
            done = line.done
            if not line.fault and not line.text.strip():
                if block.rows:
                    yield _sentence(block, entity, done)
                if block.rows or block.opens:
                    block = _Block(line.number + 1)
                block.number = line.number + 1
            elif line.text.startswith("#"):
                name, _, value = line.text[1:].partition("=")
                block.opens |= name.split()[:1] == ["newdoc"]
                if name.strip() == "global.Entity":
                    entity = entity_place(value.strip())
            else:
                block.read(line)
        if block.rows:
            yield _sentence(block, entity, done)


def _sentence(block: _Block, entity: int, done: int) -> Sentence:
    """The sentence of some lines."""
    try:
        if block.fault:
            raise ValueError(block.fault)
        text, words = _spell(block.rows)
        rows = [row for row in block.rows if row[0].isdecimal()]
        heads = tuple(_head(row, len(rows)) for row in rows)
        relations = tuple(clean_label(row[RELATION]) for row in rows)
        mentions = tuple(read_mentions([_misc(row).get("Entity", "") for row in rows], heads, entity))
        return Sentence(block.number, text, words, heads, relations, mentions, block.opens, done)
    except ValueError as error:
        return Sentence(block.number, "", (), (), (), (), block.opens, done, str(error))


def _spell(rows: list[list[str]]) -> tuple[str, tuple[Span, ...]]:
    """The text as it was written, and where in it each word stands. Raises ``ValueError``."""
    text, words, space = "", list[Span](), ""
    joined, last = "", 0  # a token of several words, whose lines follow it: what of it is left
    for row in rows:
        first, dash, stop = row[0].partition("-")
        spaced = "" if _misc(row).get("SpaceAfter") == "No" else " "
        if "." in row[0]:
            continue  # a word that was left out of the text
        ends = read_number(stop)
        if dash and ends is not None and read_number(first) == len(words) + 1 > last:
            text += space + row[FORM]
            joined, last, space = row[FORM], ends, spaced
            continue
        if row[0] != str(len(words) + 1):
            raise ValueError(f"word {row[0][:9]!r} does not follow word {len(words)}")
        if len(words) < last:
            place = joined.find(row[FORM])
            if place < 0:  # one that is not spelled out, as in du = de + le: the first stands for both
                words.append((len(text) - len(joined), len(text)))
                joined = ""
                continue
            begin = len(text) - len(joined) + place
            words.append((begin, begin + len(row[FORM])))
            joined = joined[place + len(row[FORM]) :]
            continue
        text += space
        words.append((len(text), len(text) + len(row[FORM])))
        text += row[FORM]
        space = spaced
    if not text.strip():
        raise ValueError("it holds no words")
    return text, tuple(words)


def _head(row: list[str], count: int) -> int:
    head = read_number(row[HEAD])
    if head is None or head > count:
        raise ValueError(f"word {row[0]} has no head among the {count:,} words of its sentence")
    return head - 1


def _misc(row: list[str]) -> dict[str, str]:
    """The last column: ``SpaceAfter=No|Entity=(e1)``."""
    parts = (part.partition("=") for part in row[MISC].split("|"))
    return {name: value for name, _, value in parts}


def _text(sentence: Sentence, pairs: tuple[Pair, ...]) -> GoldText:
    where = f"line {sentence.number:,}"
    return GoldText(where, sentence.text, sentence.words, pairs, sentence.done, fault=sentence.fault)


def _documents(sentences: Iterator[Sentence]) -> Iterator[GoldText]:
    """Neighbouring sentences of a document together, with a pair for each mention and those before it."""
    together: list[Sentence] = []
    for sentence in sentences:
        if sentence.fault:
            yield _text(sentence, ())
            continue
        size = sum(len(each.words) for each in together) + len(sentence.words)
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
        words += [(start + len(text), stop + len(text)) for start, stop in sentence.words]
        text += sentence.text
        for mention in sentence.mentions:
            word = before + mention.word
            known = earlier.setdefault(mention.entity, [])
            if known and word not in known:
                pairs.append(Pair((word,), tuple(known), COREFERENCE))
            known += [] if word in known else [word]
    first = replace(sentences[0], text=text, words=tuple(words), done=sentences[-1].done)
    return _text(first, tuple(pairs))
