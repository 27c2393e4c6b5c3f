"""The shortest rule that says where a head looks, found on some texts of a corpus, scored on the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, product
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Head, Kind, Site
from attnscope.axes import Array
from attnscope.capture import Record
from attnscope.errors import InputError, SelectionError
from attnscope.measures import Measurement
from attnscope.measures.forms import LEAST_OPEN, LEAST_PEAK
from attnscope.measures.measurement import MeasuredBlock
from attnscope.models import Model
from attnscope.models.inputs import Batch, Limit
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.corpus import BatchResult, CorpusRun, CorpusWork, ReadText
from attnscope.questions.examples_reading import draw_ranks
from attnscope.questions.parts import AFTER_SAME, SAME
from attnscope.questions.rules import Rule, RuleCells, is_rule, parse_rule, patterns_of
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import extent, require_selected
from attnscope.questions.stats import measuring_pass
from attnscope.records import ADDRESS, Meaning, Notes, record
from attnscope.storage.corpus import Corpus
from attnscope.text import per_cent
from attnscope.views import Column, Table

MOST_ROWS = 4096  # random rows of a site that rules are found and scored on
REACH = 8  # most tokens between a row and a key in a rule
CLASSES = ("special", "punctuation", r"/^\d/", "/^[A-Z]/")
FREQUENT, SPECIAL, FIRST_TEXTS = 12, 4, 200  # frequent words, special tokens, and of how many texts
RELATIONS = ("-1", "+1", SAME, AFTER_SAME)  # which are also tried together with a class

OWN_KEY = re.compile(r"(?<!\S)\+0(?!\S)")  # an atom of a rule that reads as a number

MOST_CLAUSES = 3
MISS = 0.5  # what a row counts whose heaviest key is another one; a row that a rule gets right counts 1
LEAST_GAIN = 0.05  # of the score, by which each further atom of a rule must raise it
BREADTH = 0.1  # what the share of keys that a rule names costs: of two rules, the narrower

LEAST_ACCURACY = 0.5  # of a rule on held-out rows
LEAST_LIFT = 0.25  # how far this is above the share of keys that it names
LEAST_SHARE = 0.1  # of the rows, that it gets right
LEAST_ROWS = 10  # with such a key


@record("what a rule leaves")
class Remainder:
    """Rows that a rule does not get right, by where their heaviest key is."""

    where: Annotated[str, Meaning("a rule that their heaviest key obeys, or why there is none")]
    share: Annotated[float, Meaning("their share of all rows")]


@record("a head's rule")
class HeadRule:
    """The shortest rule for one head, on texts that did not choose it; ``None`` if none is good enough."""

    head: Annotated[Head, ADDRESS]
    rule: Annotated[str | None, Meaning("which keys it attends to; null if no rule is good enough")]
    accuracy: Annotated[float, Meaning("share of right rows, of those with such a key")]
    coverage: Annotated[float, Meaning("share of rows with such a key")]
    breadth: Annotated[float, Meaning("share of the unmasked keys that are such keys")]
    rows: Annotated[int, Meaning("held-out rows")]
    left: Annotated[tuple[Remainder, ...], Meaning("the rows that it does not get right")]

    @property
    def claim(self) -> str:
        """What ``check`` can hold, a little below the accuracy."""
        kind = f"{self.head.kind}." if self.head.kind else ""
        return f"{kind}{self.head.name}.rule({self.rule}) > {max(0.0, int(20 * self.accuracy - 1) / 20):.2f}"


@record("rules of heads", "rule")
class Rules:
    """The rules of some heads, and notes."""

    heads: Annotated[tuple[HeadRule, ...], Meaning("the heads")]
    title: str
    notes: Notes
    read: tuple[Any, ...] = ()


@dataclass(eq=False)
class RuleRows:
    """Random rows of one site, by rank: candidates as bits, the last bit of ``hits`` for any peak."""

    rank: Tensor  # int64, [row], random, and unique with the text
    text: Tensor  # int64, [row], the number of its text
    exists: Tensor  # int64, [row], the candidates that name any key
    share: Tensor  # float32, [row, candidate], the share of unmasked keys that each names
    hits: Tensor  # int64, [row, head], the candidates that name the heaviest key

    def merge(self, other: RuleRows) -> None:
        """Add other rows; the first ``MOST_ROWS`` of both stay."""
        both = {name: torch.cat([mine, getattr(other, name)]) for name, mine in vars(self).items()}
        order = both["text"].argsort(stable=True)
        order = order[both["rank"][order].argsort(stable=True)][:MOST_ROWS]
        for name, each in both.items():
            setattr(self, name, each[order])


@dataclass(eq=False)
class RuleTotals:
    """The random rows of every site."""

    sites: dict[Site, RuleRows] = field(default_factory=dict)

    def merge(self, other: RuleTotals) -> None:
        """Add the rows of other texts."""
        for site, rows in other.sites.items():
            if site in self.sites:
                self.sites[site].merge(rows)
            else:
                self.sites[site] = rows

    def state(self) -> Mapping[str, Any]:
        """Nothing is saved: a sample is read in minutes."""
        raise NotImplementedError


@dataclass(eq=False)
class RuleReading:
    """Reads the random rows of a batch whose texts have these ``numbers``, against all candidates."""

    numbers: Sequence[int]
    candidates: Sequence[Rule]
    worst: int  # the last rank that may still be kept
    total: RuleTotals = field(default_factory=RuleTotals)
    named: dict[tuple[Kind, int], Tensor] = field(default_factory=dict)  # the same in all layers

    @torch.no_grad()
    def add(self, measured: MeasuredBlock) -> None:
        """Read a block of rows."""
        site, block, start = measured.site, measured.block, measured.start
        if block.start is None or not measured.labelled:
            return
        number = torch.tensor([self.numbers[text] for text in measured.texts])[:, None]
        rank = draw_ranks(number, torch.arange(start, start + block.rows.shape[2]))
        able = (block.open_keys >= LEAST_OPEN).any(1).cpu() & (rank <= self.worst)  # [text, row]
        text, at = able.nonzero().T
        if not len(text):
            return
        if (site.kind, start) not in self.named:
            cells = RuleCells.of_block(block)
            self.named[site.kind, start] = torch.stack(
                [_of_rows(rule.keys(cells), text, at) for rule in self.candidates], 1
            )
        allowed = _of_rows(block.allowed.any(1), text, at)
        named = self.named[site.kind, start] & allowed[:, None]  # [row, candidate, key]
        largest, key = (each.cpu() for each in block.rows[text, :, at].max(-1))  # [row, head]
        right = named.gather(-1, key[:, None].expand(-1, named.shape[1], -1)).mT  # [row, head, candidate]
        peak = largest > LEAST_PEAK
        hits = pack_bits(right & peak[..., None]) | (peak.long() << len(self.candidates))
        share = named.sum(-1) / allowed.sum(-1, keepdim=True)
        rows = RuleRows(rank[text, at], number[text, 0], pack_bits(named.any(-1)), share, hits)
        self.total.merge(RuleTotals({site: rows}))


def _of_rows(table: Tensor, text: Tensor, row: Tensor) -> Tensor:
    """Some rows of a table [text or 1, row or 1, key].  -> [row, key]"""
    return table[text.clamp(max=len(table) - 1), row.clamp(max=table.shape[1] - 1)].cpu()


def pack_bits(flags: Tensor) -> Tensor:
    """Up to 62 flags as the bits of one number.  [..., flag] -> int64, [...]"""
    return (flags.long() << torch.arange(flags.shape[-1])).sum(-1)


def unpack_bits(numbers: Array, count: int) -> Array:
    """The lowest bits of numbers.  [row] -> bool, [row, bit]"""
    flags: Array = (numbers[:, None] >> np.arange(count)) & 1 == 1
    return flags


@dataclass
class _RuleWork(CorpusWork):
    candidates: Sequence[Rule]
    worst: int = field(default=(1 << 32) - 1, init=False)

    def plan_batch(self, texts: Sequence[ReadText]) -> tuple[int, ...]:
        """The numbers of a batch's texts in the corpus."""
        return tuple(text.number for text in texts)

    def measure_batch(self, batch: Batch, numbers: tuple[int, ...]) -> BatchResult:
        """One forward pass of a batch, and its random rows."""
        self._learn(self.total)
        sides = batch.labels.get("encoder") or batch.labels.get("decoder") or ((), ())

        def measure() -> tuple[RuleReading, Measurement, Record]:
            measured, reading = (
                Measurement(("confidence",)),
                RuleReading(numbers, self.candidates, self.worst),
            )
            measured.patterns = patterns_of(chain(*(rule.atoms for rule in self.candidates)))
            measured.label(batch.labels)
            measured.watch = reading.add
            arguments = (self.model, batch.prepared, measured, self.selection, sides[0])
            return reading, measured, measuring_pass(*arguments, batched=True)

        reading, measured, record = self.known_passes.run(measure)
        self._learn(reading.total)
        if not self.progress.layout:
            require_selected(measured.scores(), record, self.selection)
            self.progress.layout = extent(record.sites), ""
        return reading.total, 0, 0, record.notes

    def _learn(self, known: RuleTotals) -> None:
        """Rows that rank behind as many others as are kept need not be read."""
        lasts = [int(rows.rank[-1]) for rows in known.sites.values() if len(rows.rank) == MOST_ROWS]
        if lasts and len(lasts) == len(known.sites):
            self.worst = min(self.worst, max(lasts))


def find_rules(
    model: Model,
    corpus: Corpus,
    head: Head | None = None,
    *,
    run: CorpusRun = CorpusRun(),  # noqa: B008
) -> Rules:
    """The shortest rule of one head, or of each, on random rows of a corpus.

    A rule is found on every other text, and scored on the remaining ones. A row counts if it has at least
    four unmasked keys; it is right if its largest weight is above 0.3 and on a key that the rule names.
    Raises ``SelectionError`` for an unknown head.
    """
    candidates = [parse_rule(text) for text in list_candidates(model, corpus, run)]
    work = _RuleWork(model, corpus, Selection(), run, RuleTotals(), candidates)
    work.walk({}, lambda state: RuleTotals())
    sites = {
        Head(site.layer, number, site.kind): (rows, number)
        for site, rows in work.total.sites.items()
        for number in range(rows.hits.shape[1])
    }
    if not sites:
        raise InputError(
            f"{corpus.name} has no rows of {LEAST_OPEN} tokens in self-attention: give longer texts"
        )
    wanted = [each for each in sites if head in (None, each, Head(each.layer, each.head))]
    if not wanted:
        raise SelectionError(f"no head {head}: there are {min(sites).name} to {max(sites).name}")
    heads = tuple(find_rule(each, *sites[each], candidates) for each in wanted)
    progress = work.progress
    title = model.title, *progress.layout[:1], progress.describe(getattr(corpus, "path", None))
    notes = (*model.notes, *progress.left_out)
    read = model, getattr(corpus, "path", None), (progress.texts, progress.tokens)
    return Rules(heads, " · ".join(part for part in title if part), notes, read)


def list_candidates(model: Model, corpus: Corpus, run: CorpusRun) -> list[str]:
    """Distances, the first token, repeats, classes, special tokens and frequent words of some texts."""
    texts = [(entry.text,) for entry in islice(corpus.entries(), FIRST_TEXTS) if not entry.fault]
    limit, tokens = Limit(run.max_tokens, run.truncate), Counter[tuple[bool, str]]()
    for prepared in model.prepare_all(texts, limit, chat=run.chat):
        if not isinstance(prepared, InputError):
            tokens.update((token.special, token.text.strip()) for token in prepared.tokens)
    names = [text for (special, text), _ in tokens.most_common() if special and is_rule(text)]
    words = [text for (special, text), _ in tokens.most_common() if not special and text.isalpha()]
    steps = [f"{step:+d}" for step in range(-REACH, REACH + 1)]
    both = (f"{relation} and {each}" for relation, each in product(RELATIONS, CLASSES))
    quoted = (f"'{word}'" for word in words[:FREQUENT])
    return [*steps, "0", SAME, AFTER_SAME, *CLASSES, *names[:SPECIAL], *quoted, *both]


def find_rule(head: Head, rows: RuleRows, number: int, candidates: Sequence[Rule]) -> HeadRule:
    """The rule that scores best on every other text, as it does on the others."""
    count, odd = len(candidates), rows.text.numpy() % 2 == 1
    hits = unpack_bits(rows.hits[:, number].numpy(), count + 1)  # [row, candidate], and any peak
    exists, share = unpack_bits(rows.exists.numpy(), count), rows.share.numpy()
    best = _choose(hits[odd, :count], exists[odd], share[odd], candidates) if odd.any() else []
    rule = Rule(tuple(clause for each in best for clause in candidates[each].clauses))
    held = ~odd
    right, there = (flags[held][:, best].any(1) for flags in (hits, exists))
    accuracy, coverage = right.sum() / max(there.sum(), 1), there.mean() if held.any() else 0.0
    breadth = float(share[held][there][:, best].sum(1).clip(max=1).mean()) if there.any() else 0.0
    good = (
        there.sum() >= LEAST_ROWS
        and accuracy >= max(LEAST_ACCURACY, breadth + LEAST_LIFT)
        and accuracy * coverage >= LEAST_SHARE
    )
    left = tuple(_describe_rest(hits[held][~right] if good else hits[held], int(held.sum()), candidates))
    numbers = (float(accuracy), float(coverage), breadth) if good else (0.0, 0.0, 0.0)
    return HeadRule(head, str(rule) if good else None, *numbers, int(held.sum()), left)


def _choose(hits: Array, exists: Array, share: Array, candidates: Sequence[Rule]) -> list[int]:
    """The candidates whose union scores best, one after another.  [row, candidate] each"""
    sizes = np.array([sum(map(len, rule.clauses)) for rule in candidates])
    right, there, cost, best = (
        np.zeros(len(hits), bool),
        np.zeros(len(hits), bool),
        -LEAST_GAIN,
        list[int](),
    )
    score = -np.inf
    while len(best) < MOST_CLAUSES:
        rights, theres = hits | right[:, None], exists | there[:, None]
        costs = cost + BREADTH * share.mean(0) + LEAST_GAIN * sizes
        scores = rights.mean(0) - MISS * (theres & ~rights).mean(0) - costs
        first = int(scores.argmax())
        if scores[first] <= score:
            break
        best, score, cost = [*best, first], scores[first], costs[first]
        right, there = rights[:, first], theres[:, first]
    return best


def _describe_rest(hits: Array, total: int, candidates: Sequence[Rule]) -> Iterator[Remainder]:
    """Where the heaviest keys of some rows are: no peak, the most frequent candidate, any other key."""
    peak, at = hits[:, -1], hits[:, :-1]
    flat = int((~peak).sum())
    if flat:
        yield Remainder(f"no weight above {LEAST_PEAK}", flat / total)
    counts = at.sum(0)
    best = int(counts.argmax()) if len(hits) else 0
    if len(hits) and counts[best]:
        yield Remainder(str(candidates[best]), int(counts[best]) / total)
    other = int((peak & ~at[:, best]).sum()) if len(hits) else 0
    if other:
        yield Remainder("other keys", other / total)


def rules_answer(result: Rules) -> Answer:
    """A line for each head."""
    several = len({each.head.kind for each in result.heads}) > 1
    left = ("head", *(("kind",) if several else ()), "attends to", "other rows")
    columns = (*left[:-1], "accuracy", "coverage", left[-1])
    rows = []
    for each in result.heads:
        kind = (each.head.kind or "",) if several else ()
        numbers = ("–", "–") if each.rule is None else (f"{each.accuracy:.2f}", f"{each.coverage:.2f}")
        rest = ", ".join(f"{per_cent(part.share)} {OWN_KEY.sub('itself', part.where)}" for part in each.left)
        rows.append((each.head.name, *kind, each.rule or "no simple rule", *numbers, rest))
    notes = [
        "coverage: rows with such a key; accuracy: those of them whose largest weight, above 0.3, is on one",
        "found on every other text, scored on the rest",
    ]
    known = [each for each in result.heads if each.rule is not None]
    if len(known) < len(result.heads):
        notes.insert(
            0, "no simple rule: none is right often enough; other rows: where their largest weight is"
        )
    if any(OWN_KEY.search(each.rule or "") for each in known):
        notes.append("+0: the row's token itself")
    if known:
        best = max(known, key=lambda each: each.accuracy * each.coverage)
        notes.append(f'to hold it: attnscope check "{best.claim}" --texts ...')
    table = Table(
        tuple(Column(name, name not in left, "keep" if name != left[-1] else "wrap") for name in columns),
        tuple(rows),
        title=result.title,
        notes=(*notes, *result.notes),
    )
    names = ("head.kind", "head.layer", "head.head", "rule", "accuracy", "coverage", "breadth", "rows")
    return Answer((table,), {}, lambda: result, lambda: csv_rows(result.heads, names))
