"""Treebanks of Universal Dependencies (CoNLL-U): every dependency relation is a question.

The format is read here and not by a library: a fault is reported with its line, and what a stranger's file
says is checked before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from attnscope.storage.gold.entities import Mention, entity_place, read_mentions
from attnscope.storage.gold.texts import GoldFile, GoldText, Pair, Span, clean_label, lines_of

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
    opens: bool = False
    fault: str = ""

    def read(self, line: str | None, number: int) -> None:
        """One more line, which is neither empty nor a comment."""
        columns = [] if line is None else line.split("\t")
        if len(columns) == COLUMNS:
            self.rows.append(columns)
        elif not self.fault:
            result = (
                "it is no UTF-8 text" if line is None else f"it has {len(columns)} columns, not {COLUMNS}"
            )
            self.fault = f"line {number:,}: {result}"


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
        for number, line, done in lines_of(self.path):
            if line is not None and not line.strip():
                if block.rows or block.fault:
                    yield _sentence(block, entity, done)
                block = _Block(number + 1)
            elif line is not None and line.startswith("#"):
                name, _, value = line[1:].partition("=")
                block.opens |= name.split()[:1] == ["newdoc"]
                if name.strip() == "global.Entity":
                    entity = entity_place(value.strip())
            else:
                block.read(line, number)
        if block.rows or block.fault:
            yield _sentence(block, entity, done)


def _sentence(block: _Block, entity: int, done: int) -> Sentence:
    """The sentence of some lines."""
    try:
        if block.fault:
            raise ValueError(block.fault)
        if len(block.rows) > LONGEST:
            raise ValueError(f"a sentence has {len(block.rows):,} lines, and may have {LONGEST:,}")
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
        if dash and first.isdecimal() and stop.isdecimal() and int(first) == len(words) + 1 > last:
            text += space + row[FORM]
            joined, last, space = row[FORM], int(stop), spaced
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
    if not (row[HEAD].isascii() and row[HEAD].isdecimal()) or len(row[HEAD]) > 9 or int(row[HEAD]) > count:
        raise ValueError(f"word {row[0]} has no head among the {count:,} words of its sentence")
    return int(row[HEAD]) - 1


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
