"""Claims about heads that hold or fail: ``L0H2.previous > 0.9``. Parsed, never run as code."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.sax.saxutils import escape, quoteattr

from attnscope.attention import Attention, Head
from attnscope.capture.record import FunctionObserver, tolerance
from attnscope.errors import InputError, SelectionError
from attnscope.lazy import torch
from attnscope.measures import HeadScores
from attnscope.models.identity import describe_input, version
from attnscope.questions.answer import Answer
from attnscope.questions.conditions import OPERATORS, Condition, parse_conditions
from attnscope.questions.sentences import list_some, pluralize
from attnscope.questions.stats import Stats, find_heads
from attnscope.records import Meaning, Notes, derived, read, record
from attnscope.storage.files import read_json, write_whole
from attnscope.text import clean, number_ranges, shorten
from attnscope.version import __version__
from attnscope.views import Cell, Column, Table

if TYPE_CHECKING:
    from attnscope.models import Model
    from attnscope.models.trace_model import TracedModel

COUNT_OPERATORS = {**OPERATORS, "=": operator.eq, "==": operator.eq, "!=": operator.ne}
"""Comparisons for a number of heads; scores are never compared for equality."""


@record("a claim")
class Verdict:
    """Whether a claim holds, and the evidence in words."""

    claim: Annotated[str, Meaning("the claim as written")]
    holds: Annotated[bool, Meaning("whether it holds")]
    evidence: Annotated[str, Meaning("the measured value, in words")]
    value: Annotated[float | None, Meaning("the deciding score, or number of heads")] = None
    error: Annotated[float | None, Meaning("the standard error of that score, over texts")] = None
    head: Annotated[str | None, Meaning("the head that decides")] = None
    operator: Annotated[str | None, Meaning("how it is compared")] = None
    threshold: Annotated[float | str | None, Meaning("with which number, or with which role")] = None


@dataclass(frozen=True)
class Claim:
    """Conditions on one head, on any or all heads, or on how many meet them; see ``parse_claim``."""

    text: str
    subject: Head | str  # a head, any, all or count
    conditions: tuple[Condition, ...]
    sign: str = ""  # how many: COUNT_OPERATORS[sign](heads that meet the conditions, wanted)
    wanted: int = 0
    layer: int | None = None  # whose heads are meant, if not all
    least: bool | None = None  # of min(...), of max(...)

    @property
    def names(self) -> tuple[str, ...]:
        """The measures that it needs."""
        return tuple(each.name for each in self.conditions if each.name != "role")

    def verdict(self, heads: Sequence[HeadScores]) -> Verdict:
        """Whether it holds. Raises ``SelectionError`` for a head or a layer that does not exist."""
        layers = {head.site.layer for head in heads}
        if self.layer is not None and self.layer not in layers:
            raise SelectionError(f"no layer {self.layer}: there are {number_ranges(layers)}")
        heads = [head for head in heads if self.layer in (None, head.site.layer)]
        if self.subject == "count":
            return self._verdict_on_number(heads)
        condition = self.conditions[0]
        if isinstance(self.subject, Head):
            head, *others = find_heads(self.subject, heads)
            if others:
                kinds = " or ".join(f"{each.site.kind}.{each.name}" for each in (head, *others))
                raise SelectionError(f"which {head.name}? write {kinds}")
            return self._verdict_on_head(head, _evidence(head, condition))
        return self._verdict_on_many(heads, condition, every=self.subject == "all")

    def _verdict_on_many(self, heads: Sequence[HeadScores], condition: Condition, *, every: bool) -> Verdict:
        """Whether the deciding one of all heads, or of any, meets the condition, and which that is."""
        if condition.name == "role":
            met = sum(map(condition.meets, heads))
            evidence = f"{met} of {len(heads)} heads"
            return self._verdict(met >= (len(heads) if every else 1), evidence)
        measured = [head for head in heads if condition.name in head.scores]
        if not measured:
            return self._verdict(False, f"no head has it: {heads[0].absent[condition.name]}")
        # the head that decides: with the largest score, or the smallest; what is no number meets nothing,
        # so it comes first among all heads, last among any
        least = condition.sign.startswith(">") == every if self.least is None else self.least
        sign = 1 if least else -1
        scores = {id(head): head.scores[condition.name].value for head in measured}
        head = min(measured, key=lambda each: (isnan(scores[id(each)]) != every, sign * scores[id(each)]))
        several = len({each.site.kind for each in heads}) > 1
        name = f"{head.site.kind} {head.name}" if several else head.name
        among = f"the {'smallest' if least else 'largest'} of {pluralize(len(measured), 'head')}"
        here = {each.site.layer for each in measured}
        among += f" of layer {min(here)}" if len(here) == 1 else ""
        return self._verdict_on_head(head, f"{_evidence(head, condition)}, {name}: {among}")

    def _verdict(self, holds: bool, evidence: str, **more: Any) -> Verdict:
        condition = self.conditions[0]
        threshold = condition.wanted if condition.name == "role" else float(condition.wanted)
        fields: dict[str, Any] = {"operator": condition.sign, "threshold": threshold}
        return Verdict(self.text, holds, evidence, **fields | more)

    def _verdict_on_number(self, heads: Sequence[HeadScores]) -> Verdict:
        names = [head.name for head in heads if all(each.meets(head) for each in self.conditions)]
        holds = COUNT_OPERATORS[self.sign](len(names), self.wanted)
        evidence = f"{len(names)}{': ' if names else ''}{list_some(names, 4)}"
        return self._verdict(holds, evidence, value=len(names), operator=self.sign, threshold=self.wanted)

    def _verdict_on_head(self, head: HeadScores, evidence: str) -> Verdict:
        score = head.scores.get(self.conditions[0].name)
        known = {} if score is None else {"value": score.value, "error": score.error}
        name = f"{head.site.kind} {head.name}"
        return self._verdict(self.conditions[0].meets(head), evidence, head=name, **known)


def _evidence(head: HeadScores, condition: Condition) -> str:
    """A head's role, or a score with its standard error, or why there is none."""
    if condition.name == "role":
        return head.role.name if head.role is not None else "no role"
    score = head.scores.get(condition.name)
    if score is None:
        return head.absent[condition.name]
    value = _deciding_digits(score.value, condition)
    return value + ("" if score.error is None else f" ±{score.error:.2g}")


def _deciding_digits(value: float, condition: Condition) -> str:
    """A score with four digits, or as many as place it on its side of the threshold."""
    compare, threshold = OPERATORS[condition.sign], float(condition.wanted)
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(text for text in texts if compare(float(text), threshold) == compare(value, threshold))


def parse_claim(text: str) -> Claim:
    """Read ``L0H2.previous > 0.9``, ``L0H2.role = previous``, ``any.induction > 0.4``, ``all.entropy < 3``,
    ``L3.entropy < 2`` (all heads of a layer), ``max(L3.previous) > 0.5`` or ``count(previous > 0.5) >= 2``;
    a kind may stand before a head, ``cross.L0H2.entropy < 1``.

    Raises ``SelectionError`` for anything else.
    """
    plain = text.strip()
    count = re.fullmatch(r"count\((.*)\)\s*(<=|>=|!=|==?|<|>)\s*(\d{1,9})", plain, re.ASCII)
    if count is not None:
        return Claim(plain, "count", parse_conditions(count[1]), count[2], int(count[3]))
    extreme = re.fullmatch(r"(min|max)\((?:(all|[Ll]\d+)\.)?(.+?)\)(\s*[<>].+)", plain, re.ASCII)
    parts = (extreme[2] or "all", extreme[3] + extreme[4]) if extreme else plain.partition(".")[::2]
    one = re.fullmatch(r"(any|all|[Ll]\d+|(?:\w+\.)?[Ll]\d+[Hh]\d+)\.(.+)", ".".join(parts), re.ASCII)
    if one is None:
        raise SelectionError(
            f"cannot read the claim {text!r}: write one like 'L0H2.previous > 0.9', 'L0H2.role = previous', "
            "'any.induction > 0.4', 'all.entropy < 3', 'L3.entropy < 2', 'min(L3.entropy) > 0.1' or "
            "'count(previous > 0.5) >= 2'"
        )
    conditions = parse_conditions(one[2])
    if len(conditions) > 1:
        raise SelectionError(f"the claim {plain!r} has two conditions: make it two claims")
    if extreme and conditions[0].name == "role":
        raise SelectionError(f"the claim {plain!r} has no number: min and max are of a measure")
    layer = int(one[1][1:]) if one[1][1:].isdigit() else None
    least = extreme[1] == "min" if extreme else None
    subject = "all" if layer is not None else one[1] if one[1] in ("any", "all") else Head(one[1])
    return Claim(plain, subject, conditions, layer=layer, least=least)


FORMAT_VERSION, ROLE = 2, "role"


@record("a score or a role that changed")
class Change:
    """A score, or the role, of a head that differs; ``None`` where it is missing."""

    head: Annotated[str, Meaning("its head")]
    measure: Annotated[str, Meaning("its measure, or role")]
    before: Annotated[float | str | None, Meaning("in the snapshot")]
    now: Annotated[float | str | None, Meaning("in this run")]

    @property
    def size(self) -> float:
        """How far a score moved, relative to one above 1; infinite if it is missing, or a role's name."""
        if not isinstance(self.before, float) or not isinstance(self.now, float):
            return 0.0 if self.before == self.now else inf
        return abs(self.now - self.before) / max(1.0, abs(self.before))


@record("claims and their outcome", "check")
class CheckResult:
    """Verdicts on claims, and differences from a snapshot, if one was given."""

    claims: Annotated[tuple[Verdict, ...], Meaning("every claim")]
    changes: Annotated[tuple[Change, ...] | None, Meaning("scores beyond the tolerance, and roles")] = None
    largest: Annotated[Change | None, Meaning("the score that moved most, beyond the tolerance or not")] = (
        None
    )
    notes: Notes = ()

    @derived("whether every claim holds, and no score or role changed")
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.claims) and not self.changes


def save_snapshot(stats: Stats, path: Path) -> None:
    """Write all scores, with all digits, and roles of all heads as JSON. Raises ``OutputError``."""
    versions = {"attnscope": __version__, **{name: version(name) for name in ("torch", "transformers")}}
    content = {"attnscope snapshot": FORMAT_VERSION, "title": stats.title, "versions": versions}
    content |= {"texts": _checksums(stats), "heads": _scores(stats)}
    write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def compare_snapshot(stats: Stats, path: Path, tolerance: float) -> CheckResult:
    """The differences from a snapshot, head by head, and notes if that is of another model or other texts.

    ``tolerance`` is absolute for scores up to 1, and relative to the snapshot's score for larger ones.
    A head or score that only one of the two has is a change. Raises ``InputError`` for any other file.
    """
    try:
        content = read_json(path)
        if content["attnscope snapshot"] != FORMAT_VERSION:
            raise KeyError
        before = read(Mapping[str, Mapping[str, float | str | None]], content["heads"])
        saved_checksums = read(tuple[str, ...], content["texts"])
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; --save-snapshot writes one") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} is not a snapshot that attnscope check saved") from None
    now, checksums, changes = _scores(stats), _checksums(stats), list[Change]()
    for head in {**before, **now}:
        old, new = before.get(head, {}), now.get(head, {})
        changes += [Change(head, name, old.get(name), new.get(name)) for name in {**old, **new}]
    finite = (each for each in changes if 0 < each.size < inf)
    largest = max(finite, key=lambda each: each.size, default=None)
    beyond = tuple(each for each in changes if not each.size <= tolerance)
    there = clean(shorten(str(content.get("title", ""))))
    notes = []
    if lost := {*before} ^ {*now}:
        only = f"{len(before.keys() & lost):,} only in {path.name}, {len(now.keys() & lost):,} only here"
        notes.append(f"other heads: {only}; the snapshot is of {there}, this is {stats.title}")
    if checksums != saved_checksums:
        sums = f"sha256 {', '.join(saved_checksums)} there, {', '.join(checksums)} here"
        notes.append(f"the texts differ from those of {path.name}, which is of {there}: {sums}")
    return CheckResult((), beyond, largest, tuple(notes))


def _scores(stats: Stats) -> dict[str, dict[str, float | str | None]]:
    return {
        f"{head.site.kind} {head.name}": {ROLE: head.role.name if head.role is not None else None}
        | {name: score.value for name, score in head.scores.items()}
        for head in stats.heads
    }


def _checksums(stats: Stats) -> tuple[str, ...]:
    """The sha256 of the text and of every file that was read."""
    read = describe_input(*(stats.read or [""]))
    return tuple(each for each in (read.sha256, *(read.files or {}).values()) if each)


BLOCK_ROWS = 256  # compared at a time


def check_served(served: TracedModel, model: Model) -> tuple[Verdict, ...]:
    """Whether a server's queries and keys give a model's rows on the same tokens, by layer.

    Raises ``InputError`` if the file has no token ids.
    """
    prepared = served.prepared
    if not prepared.tokens or prepared.replay is None:
        raise InputError(f"{served.name} does not name its tokens: give it input_ids, and -m MODEL")
    layers = {each.site.layer: each for each in prepared.replay.attentions}
    verdicts: list[Verdict] = []

    def claim_of(layer: int) -> str:
        return f"rows of layer {layer} are those of {model.name}"

    def compare(attention: Attention) -> None:
        other = layers.pop(attention.site.layer, None)
        if other is None or attention.site.kind != "decoder":
            return
        claim, length = claim_of(attention.site.layer), len(other.queries)
        first = len(attention.queries) - length  # a server may hold the last rows alone
        if attention.heads != other.heads or len(attention.keys) != len(other.keys):
            there, here = (f"{each.heads} heads of {len(each.keys):,} keys" for each in (other, attention))
            verdicts.append(Verdict(claim, False, f"{there} in the file, {here} in the model"))
            return
        largest = 0.0
        for start, stop in pairwise((*range(0, length, BLOCK_ROWS), length)):
            rows = attention.read.rows(first + start, first + stop, None).float()
            difference = rows - other.read.rows(start, stop, None).to(rows)
            largest = max(largest, float(difference.abs().max()))
        most, evidence = tolerance(other.dtype), f"largest difference {largest:.2g}"
        verdicts.append(Verdict(claim, largest <= most, evidence, largest, operator="<=", threshold=most))

    ids = torch.tensor([[token.id for token in prepared.tokens]])
    model.run(model.prepare_tensors({"input_ids": ids}), [FunctionObserver(compare)])
    missing = (Verdict(claim_of(layer), False, "the model has no such layer") for layer in sorted(layers))
    return (*verdicts, *missing)


LISTED_CHANGES = 10


def _outcomes(result: CheckResult, tolerance: float) -> list[tuple[bool, str, str]]:
    """Of each claim, and of the snapshot: whether it holds, its words, and the evidence."""
    lines = [(each.holds, each.claim, each.evidence) for each in result.claims]
    changed = result.changes or ()
    if result.changes is not None:
        beyond = [each for each in changed if each.measure != ROLE]
        heads, roles, most = len({each.head for each in beyond}), len(changed) - len(beyond), result.largest
        differ = f"{len(beyond):,} scores of {heads:,} heads differ by more than"
        evidence = f"{differ if beyond else 'all within'} {tolerance:g}"
        evidence += f", {pluralize(roles, 'role')} changed" if roles else ""
        evidence += f"; largest {most.size:.2g}, {most.head}.{most.measure}" if most else ""
        lines.append((not changed, "snapshot", evidence))
    return lines


def junit_report(result: CheckResult, tolerance: float, model: str) -> str:
    """The outcomes as JUnit XML: a test case for each, named by its claim."""
    cases, lines = [], _outcomes(result, tolerance)
    for holds, claim, evidence in lines:
        content = "" if holds else f"<failure message={quoteattr(evidence)}/>"
        content += f"<system-out>{escape(evidence)}</system-out>"
        cases.append(f"<testcase classname={quoteattr(model)} name={quoteattr(claim)}>{content}</testcase>")
    failures = sum(not holds for holds, *_ in lines)
    head = f'<testsuite name="attnscope check" tests="{len(lines)}" failures="{failures}">'
    return "\n".join(['<?xml version="1.0" encoding="utf-8"?>', head, *cases, "</testsuite>"])


ESCAPES: dict[str, int | str | None] = {"%": "%25", "\r": "%0D", "\n": "%0A"}  # of GitHub's workflow commands


def github_annotations(result: CheckResult, tolerance: float) -> str:
    """The outcomes as workflow commands of GitHub: an error for each claim that fails, notices for others."""
    lines = []
    for holds, claim, evidence in _outcomes(result, tolerance):
        message = f"{claim}: {'it holds' if holds else 'it fails'}, {evidence}".translate(
            str.maketrans(ESCAPES)
        )
        lines.append(f"::{'notice' if holds else 'error'} title=attnscope check::{message}")
    return "\n".join(lines)


def check_answer(result: CheckResult, tolerance: float) -> Answer:
    """One line per claim, and what changed since the snapshot."""
    lines, changed = _outcomes(result, tolerance), result.changes or ()
    rows: list[tuple[Cell, ...]] = [
        ((("ok    ", "green"),) if holds else (("FAILED", "bold red"),), *words) for holds, *words in lines
    ]
    for change in changed[:LISTED_CHANGES]:
        before, now = (
            f"{v:.4g}" if isinstance(v, float) else v or "none" for v in (change.before, change.now)
        )
        rows.append(("", f"{change.head}.{change.measure}", f"{before} before, {now} now"))
    if len(changed) > LISTED_CHANGES:
        rows.append(("", f"and {len(changed) - LISTED_CHANGES:,} more", ""))
    columns = Column("", long="keep"), Column("", long="fold"), Column("")
    return Answer((Table(columns, tuple(rows), notes=result.notes),), {}, lambda: result)
