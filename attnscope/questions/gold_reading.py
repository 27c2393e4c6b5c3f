"""How a file's questions are asked of every row of a call, and their sums."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise, product
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, Kind, Site, Token
from attnscope.axes import places
from attnscope.capture.observers import rows_at_a_time
from attnscope.errors import InputError
from attnscope.measures.exact import ExactSum
from attnscope.measures.measurement import Sums
from attnscope.questions.corpus import ReadText
from attnscope.questions.parts import locate_tokens
from attnscope.questions.selection import Selection
from attnscope.records import read
from attnscope.scores import Score
from attnscope.storage.corpus import CorpusText, GoldPair, Span
from attnscope.storage.gold import ROWS, GoldFile

REACH = 100  # most words of a fixed offset that is tried as a baseline
COUNTS = 4 + 2 * REACH + 1  # numbers of a slot that are the same for all heads


Scored: TypeAlias = tuple[list[list[Score | None]], Tensor]
"""The scores of each head, of right rows and of the answers' weight, and the answers at each distance."""


@dataclass(eq=False)
class SiteSums:
    """The sums of one site's ``heads``, a row per slot.

    A row holds the questions, their squared number by text, the texts, and what uniform attention gives the
    answers; the answers at each distance; and of right rows and of the answers' weight, by head, sums over
    texts of each text's sum, its square, and its product with the text's count.
    """

    heads: tuple[int, ...]
    table: ExactSum  # [slot, COUNTS + 6 * head]

    @cached_property
    def values(self) -> Tensor:
        """The sums, rounded.  -> float64, [slot, COUNTS + 6 * head]"""
        return self.table.value()

    def of(self, slot: int, halves: Sequence[int]) -> Scored:
        """The sums of one slot over one half of the corpus, or both, as scores."""
        rows = (HALVES * slot + half for half in halves)
        row = self.values[[row for row in rows if row < len(self.values)]].sum(0)
        total, squares, products = row[COUNTS:].view(2, 3, -1).transpose(0, 1)  # [right|weight, head] each
        asked, asked_squared, texts, even = (each.expand_as(total) for each in row[:4])
        none = torch.zeros_like(total)
        sums = [asked, total, even, none, none, none, texts, squares, products, asked_squared]
        return Sums(ExactSum(torch.stack(sums))).scores(), row[4:COUNTS]


MOST_LABELS = 1000  # most labels of a file; every head has scores for each

Slot: TypeAlias = tuple[str | None, int]
"""A label and a direction (0: left to right); without a label, the agreement with a full alignment."""

HALVES = 2  # of the corpus, each with sums of its own


@dataclass
class GoldTotals:
    """Sums over batches: ``slots`` numbers each label and direction, and each half of the corpus within it.

    ``others`` are labels that were not asked about. ``lost`` pairs could not be asked, and attention of the
    kinds ``skipped`` is not over the tokens.
    """

    sums: dict[Site, SiteSums] = field(default_factory=dict)
    slots: dict[Slot, int] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    lost: int = 0
    skipped: set[Kind] = field(default_factory=set)

    def number(self, slot: Slot, half: int) -> int:
        """The place of a slot's sums. Raises ``InputError`` for too many labels."""
        if len(self.slots) > 2 * MOST_LABELS:
            raise InputError(f"there are more than {MOST_LABELS:,} labels: ask for some with --relation")
        return HALVES * self.slots.setdefault(slot, len(self.slots)) + half

    def merge(self, other: GoldTotals) -> None:
        """Add the sums of other texts; slots of their own may have other numbers."""
        numbers = [self.slots.setdefault(slot, len(self.slots)) for slot in other.slots]
        places = [HALVES * number + half for number in numbers for half in range(HALVES)]
        for site, theirs in other.sums.items():
            rows = places[: theirs.table.shape[0]] or [*range(theirs.table.shape[0])]
            mine = self.sums.get(site)
            have = 0 if mine is None else mine.table.shape[0]
            count = max(have, *(row + 1 for row in rows))
            table = theirs.table.place(rows, count)
            if mine is not None:
                table = mine.table.place(range(have), count) + table
            self.sums[site] = SiteSums(theirs.heads, table)
        self.others |= other.others
        self.skipped |= other.skipped
        self.lost += other.lost

    def state(self) -> dict[str, Any]:
        """All of it as plain lists, which JSON keeps exactly."""
        sums = [
            {"site": asdict(site), "heads": list(each.heads), "table": each.table.state()}
            for site, each in self.sums.items()
        ]
        plain = {"slots": list(self.slots), "others": sorted(self.others), "skipped": sorted(self.skipped)}
        return {"sums": sums, "lost": self.lost, **plain}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> GoldTotals:
        """What ``state`` wrote down. Raises ``ValueError`` or ``TypeError`` for anything else."""
        listed = read(tuple[Slot, ...], state["slots"])
        slots = {slot: number for number, slot in enumerate(listed)}
        others, skipped = read(tuple[str, ...], state["others"]), read(tuple[Kind, ...], state["skipped"])
        total = cls({}, slots, set(others), read(int, state["lost"]), set(skipped))
        for entry in state["sums"]:
            heads = read(tuple[int, ...], entry["heads"])
            table = ExactSum.from_state(entry["table"])
            shaped = len(table.shape) == 2 and table.shape[1] == COUNTS + 6 * len(heads)
            if not shaped or not 0 < table.shape[0] <= HALVES * len(listed) or min(heads) < 0:
                raise ValueError("the sums do not fit together")
            total.sums[read(Site, entry["site"])] = SiteSums(heads, table)
        unknown = any(slot[1] not in (0, 1) for slot in listed)
        if unknown or total.lost < 0 or len(total.slots) < len(listed):
            raise ValueError("the questions do not fit together")
        return total


@dataclass(frozen=True, eq=False)
class Grouping:
    """The tokens of one axis in groups: one for each word that has tokens, and one for each other token."""

    of_token: tuple[int, ...]  # the group of each token, numbered by their first tokens
    of_word: Mapping[int, int]
    special: list[int]  # groups that are no candidates


def group_tokens(tokens: Sequence[Token], text: str, words: Sequence[Span]) -> Grouping:
    """Which tokens make up each word of a text: those with most of their characters in it.

    A piece without characters, which the text spells otherwise or not at all, joins the piece of its word
    before it, or else after it.
    """
    found: list[int | None] = []
    for place in locate_tokens(tokens, text):
        start, stop = place or (0, 0)
        first = max(0, bisect_right(words, start, key=itemgetter(0)) - 1)
        near = range(first, bisect_left(words, stop, key=itemgetter(0)))
        shared = {number: min(words[number][1], stop) - max(words[number][0], start) for number in near}
        some = [number for number in near if shared[number] > 0]
        found.append(max(some, key=shared.__getitem__, default=None))  # the first of several
    pieces = [place.word for place in places(tuple(tokens))]
    forward = list(pairwise(range(len(tokens))))
    for other, number in (*forward, *((two, one) for one, two in reversed(forward))):
        if found[number] is None and pieces[number] is not None and pieces[number] == pieces[other]:
            found[number] = found[other]
    number_of: dict[int, int] = {}  # words by number, and each other token as -1, -2, ...
    names = [-1 - place if word is None else word for place, word in enumerate(found)]
    groups = tuple(number_of.setdefault(name, len(number_of)) for name in names)
    special = [group for group, token in zip(groups, tokens, strict=True) if token.special]
    return Grouping(groups, {name: group for name, group in number_of.items() if name >= 0}, special)


Answers = dict[int, dict[int, int]]  # by row, its keys that are right: how many words each is away


@dataclass(eq=False)
class GoldQuestions:
    """The questions of a batch about one kind of attention: rows and keys are groups of tokens.

    An answer is a key that is right. A unit is one text's share of one slot.
    """

    rows: list[Grouping] = field(default_factory=list)  # by text
    keys: list[Grouping] = field(default_factory=list)  # within one text the very same as its rows
    questions: list[tuple[int, int, int]] = field(default_factory=list)  # text, row, unit
    answers: list[tuple[int, int, int]] = field(default_factory=list)  # question, key, offset in words
    units: list[tuple[int, int]] = field(default_factory=list)  # slot, what counts beside the questions
    lost: int = 0  # pairs without tokens of their own

    def ask(
        self,
        text: CorpusText,
        rows: Grouping,
        keys: Grouping,
        file: GoldFile,
        total: GoldTotals,
        half: int,
        which: int = 0,
    ) -> None:
        """Add the questions of one more text, and its agreement with an alignment (Och and Ney 2003).

        Of an alignment, the rows are those of direction ``which``.
        """
        self.rows.append(rows)
        self.keys.append(keys)
        for way in (which,) if file.links else range(len(file.directions)):
            found: dict[str, Answers] = {}
            for pair in text.pairs:
                known = self._collect(pair, way and not file.links, found.setdefault(pair.label, {}))
                self.lost += way == which and not known
            for label, questions in found.items():
                if questions:
                    self.units.append((total.number((label, way), half), 0))
                    self._add(questions)
        if file.links:  # 1 - AER: the agreement with all links and with the sure ones
            possible, sure = both = Answers(), Answers()
            for pair in text.pairs:
                for links in both[: 1 + pair.sure]:
                    self._collect(pair, False, links)
            counted = len(rows.of_word) + sum(map(len, sure.values()))
            self.units.append((total.number((None, which), half), counted - len(possible) - len(sure)))
            self._add(possible)
            self._add(sure)

    def _collect(self, pair: GoldPair, back: bool | int, answers: Answers) -> bool:
        """Add the answers of a pair in the last text, their distance in words by row; whether it has any."""
        rows, keys = self.rows[-1].of_word, self.keys[-1].of_word
        lefts, rights = (pair.right, pair.left) if back else (pair.left, pair.right)
        found_answer = False
        for one, other in product(lefts, rights):
            row, key = rows.get(one), keys.get(other)
            if row is not None and key is not None and (row != key or rows is not keys):
                answers.setdefault(row, {})[key] = other - one
                found_answer = True
        return found_answer

    def _add(self, questions: Answers) -> None:
        for row, answers in questions.items():
            self.answers += ((len(self.questions), key, offset) for key, offset in answers.items())
            self.questions.append((len(self.rows) - 1, row, len(self.units) - 1))

    @cached_property
    def tables(self) -> _Tables:
        """The questions as tensors, when all are asked."""
        return _Tables(self)


Asked = dict[Kind, Sequence[GoldQuestions]]
END = Token("", -1, special=True)  # behind a target, where its last row predicts


def ask_batch(texts: Sequence[ReadText], file: GoldFile, total: GoldTotals) -> Asked:
    """The questions about a batch, by kind of attention: within a text, or from a target to its text.

    A row is that of the token that it has read or, of a target's ``predicting`` rows, of the next one.
    """
    first = texts[0].prepared.axes
    kinds: Asked = {}
    for kind, axes in first.items():
        if (texts[0].entry.target is None) == (kind == "cross"):
            continue
        twin = next((other for other in kinds if first[other] == axes), None)  # the same tokens
        if twin is not None:
            kinds[kind] = kinds[twin]
        elif not any(isinstance(axis, range) for axis in axes):
            asked = kinds[kind] = [
                GoldQuestions() for _ in (file.directions if file.links else file.directions[:1])
            ]
            for gold, prepared, number in texts:
                tokens: Any = prepared.axes[kind]
                columns = group_tokens(tokens[1], gold.text, gold.words)
                for which, each in enumerate(asked):
                    lines = columns
                    if gold.target is not None:
                        ahead = file.directions[which] == ROWS[0]
                        shown = (*tokens[0][1:], END) if ahead else tokens[0]
                        lines = group_tokens(shown, gold.target, gold.target_words)
                    each.ask(gold, lines, columns, file, total, 1 - number % 2, which)
    return kinds


BLOCK = 1 << 22  # weights that are processed together: 16 MB in float32


@dataclass(eq=False)
class GoldReading:
    """Reads every row of a call in blocks that split no word, and keeps only sums.

    Of a word's pieces, rows are averaged and columns summed. A row is right if the word with its largest
    sum, except special tokens and itself, is one of the answers (Clark et al. 2019, section 4.2). A
    question with all answers masked is skipped.
    """

    asked: Asked
    slots: int
    selection: Selection
    found: GoldTotals = field(default_factory=GoldTotals)

    @torch.no_grad()
    def observe(self, attention: Attention) -> None:
        """Read one call."""
        site = attention.site
        heads: Sequence[int] = self.selection.heads(site, attention.heads) or ()
        for asked in self.asked.get(site.kind, ()) if heads else ():
            if not asked.questions:
                continue
            lengths = len(asked.rows), len(asked.rows[0].of_token), len(asked.keys[0].of_token)
            if lengths != (attention.batch, len(attention.queries), len(attention.keys)):
                self.found.skipped.add(site.kind)
                return
            sums = asked.tables.sums(attention.only(heads), HALVES * self.slots)
            self.found.merge(GoldTotals({site: SiteSums(tuple(heads), ExactSum(sums))}))


class _Tables:
    """The questions of a batch as tensors, shared by the layers of a kind."""

    def __init__(self, asked: GoldQuestions) -> None:
        self.text, self.row, self.unit = torch.tensor(asked.questions).T.contiguous()  # [question]
        self.question, self.key, self.offset = torch.tensor(asked.answers).T.contiguous()  # [answer]
        self.slot, self.more = torch.tensor(asked.units).T.contiguous()  # [unit]
        self.of_row = torch.tensor([each.of_token for each in asked.rows])  # [text, row]
        self.of_key = torch.tensor([each.of_token for each in asked.keys])  # [text, key]
        self.keys = int(self.of_key.max()) + 1
        self.one_sequence = asked.rows[0] is asked.keys[0]
        self.excluded = torch.ones(len(asked.keys), self.keys, dtype=torch.bool)  # [text, group]
        for excluded, each in zip(self.excluded, asked.keys, strict=True):
            excluded[: max(each.of_token) + 1] = False
            excluded[each.special] = True
        before = self.of_row.cummax(1).values[:, :-1]
        after = self.of_row.flip(1).cummin(1).values.flip(1)[:, 1:]
        between = (before < after).all(0).nonzero()[:, 0] + 1  # rows before which no text splits a word
        self.cuts = [0, *between.tolist(), self.of_row.shape[1]]

    def sums(self, attention: Attention, slots: int) -> Tensor:
        """The sums of one call.  -> [slot, COUNTS + 6 * head]"""
        answered = torch.zeros(len(self.key), attention.heads, dtype=torch.float64)  # the weight on each
        opened = torch.zeros(len(self.key), dtype=torch.float64)  # the same for uniform attention
        best = torch.zeros(len(self.row), attention.heads, dtype=torch.long)  # the heaviest word of each row
        for start, stop in self._blocks(rows_at_a_time(attention, BLOCK)):
            groups = self.of_row[:, start:stop]
            first = groups.amin(1)
            mine = (self.row >= first[self.text]) & (self.row <= groups.amax(1)[self.text])  # [question]
            if not bool(mine.any()):
                continue
            rows, allowed = attention.rows(start, stop).float(), attention.allowed(start, stop)
            even = allowed.float() / allowed.sum(-1, keepdim=True).clamp(min=1)
            lines = groups - first[:, None]  # [text, row], numbered within the block
            words, even = (
                self._words(each, lines) for each in (rows, even.expand(len(rows), *even.shape[1:]))
            )
            answers = mine[self.question]
            asked = self.question[answers]
            at = self.text[asked], (self.row - first[self.text])[asked], self.key[answers]
            answered[answers], opened[answers] = words[at].cpu().double(), even[at].cpu().double().mean(-1)
            words.masked_fill_(self.excluded[:, None, :, None].to(words.device), -1)
            if self.one_sequence:
                itself = first[:, None] + torch.arange(words.shape[1])  # [text, row]
                itself = itself.clamp(max=self.keys - 1)[..., None, None].to(words.device)
                words.scatter_(2, itself.expand(-1, -1, 1, words.shape[3]), -1)
            best[mine] = words.argmax(2)[self.text[mine], (self.row - first[self.text])[mine]].cpu()
        return self._by_slot(answered, opened, best, slots)

    def _blocks(self, most: int) -> Iterator[tuple[int, int]]:
        """Where blocks of rows begin and end: at most ``most`` rows, unless a word is longer."""
        start = last = 0
        for cut in self.cuts[1:]:
            if cut - start > most and last > start:
                yield start, last
                start = last
            last = cut
        yield start, last

    def _words(self, rows: Tensor, lines: Tensor) -> Tensor:
        """Columns summed and rows averaged by word.  [text, head, row, key] -> [text, line, word, head]"""
        texts, heads, size, length = rows.shape
        first = torch.arange(texts)[:, None]
        column = (self.of_key + first * self.keys).flatten().to(rows.device)
        table = rows.permute(0, 3, 2, 1).reshape(texts * length, size * heads)
        table = table.new_zeros(texts * self.keys, size * heads).index_add_(0, column, table)
        table = table.view(texts, self.keys, size, heads).transpose(1, 2).reshape(texts * size, -1)
        across = int(lines.max()) + 1
        line = (lines + first * across).flatten().to(rows.device)
        table = table.new_zeros(texts * across, table.shape[1]).index_add_(0, line, table)
        table /= torch.bincount(line, minlength=texts * across).clamp(min=1)[:, None]
        return table.view(texts, across, self.keys, heads)

    def _by_slot(self, answered: Tensor, opened: Tensor, best: Tensor, slots: int) -> Tensor:
        """The sums over questions, text by text, and then over texts.  -> [slot, COUNTS + 6 * head]"""
        share = opened.new_zeros(len(self.row)).index_add_(0, self.question, opened)
        asked = (share > 0).double()  # [question]
        unit, counts = self.unit[self.question], asked[self.question, None]
        right, weight = (
            answered.new_zeros(len(self.slot), answered.shape[1]).index_add_(0, unit, found * counts)
            for found in (best[self.question] == self.key[:, None], answered)
        )  # [unit, head] each
        count, even = (
            asked.new_zeros(len(self.slot)).index_add_(0, self.unit, each)  # [unit]
            for each in (asked, share)
        )
        count += self.more
        columns = [torch.stack([count, count.square(), (count > 0).double(), even], 1)]
        columns.append(count.new_zeros(len(count), 2 * REACH + 1))
        for each in (right, weight):
            columns += [each, each.square(), each * count[:, None]]
        units = torch.cat(columns, 1)
        sums = units.new_zeros(slots, units.shape[1]).index_add_(0, self.slot, units)
        near = (self.offset.abs() <= REACH) & (opened > 0)
        distances = self.slot[unit[near]], 4 + REACH + self.offset[near]
        return sums.index_put_(distances, torch.ones((), dtype=sums.dtype), accumulate=True)
