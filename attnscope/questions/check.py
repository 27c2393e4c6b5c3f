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

from attnscope.attention import Attention, Head
from attnscope.capture.record import FunctionObserver, tolerance
from attnscope.errors import InputError, SelectionError
from attnscope.lazy import torch
from attnscope.measures import HeadFigures
from attnscope.models.identity import describe_input, version
from attnscope.questions.answer import Answer
from attnscope.questions.sentences import list_some
from attnscope.questions.stats import OPERATORS, Condition, Stats, find_heads, parse_conditions
from attnscope.records import Meaning, Notes, derived, read, record
from attnscope.storage.files import read_json, write_whole
from attnscope.version import __version__
from attnscope.views import Cell, Column, Table

if TYPE_CHECKING:
    from attnscope.models import Model
    from attnscope.models.trace_model import TracedModel

COUNTED = {**OPERATORS, "=": operator.eq, "==": operator.eq, "!=": operator.ne}
"""Comparisons for a number of heads; figures are never compared for equality."""


@record("a claim")
class Verdict:
    """Whether a claim holds, and the evidence in words."""

    claim: Annotated[str, Meaning("as it was made")]
    holds: Annotated[bool, Meaning("whether it holds")]
    evidence: Annotated[str, Meaning("what was found, in words")]
    value: Annotated[float | None, Meaning("the deciding figure, or number of heads")] = None
    error: Annotated[float | None, Meaning("the standard error of that figure, over texts")] = None
    head: Annotated[str | None, Meaning("the head that decides")] = None
    operator: Annotated[str | None, Meaning("how it is compared")] = None
    threshold: Annotated[float | str | None, Meaning("with which number, or with which role")] = None


@dataclass(frozen=True)
class Claim:
    """Conditions on one head, on any or all heads, or on how many meet them; see ``claim``."""

    text: str
    about: Head | str  # a head, any, all or count
    conditions: tuple[Condition, ...]
    sign: str = ""  # how many: COUNTED[sign](heads that meet the conditions, wanted)
    wanted: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The measures that it needs."""
        return tuple(each.name for each in self.conditions if each.name != "role")

    def judge(self, heads: Sequence[HeadFigures]) -> Verdict:
        """Whether it holds. Raises ``SelectionError`` for a head that does not exist."""
        condition = self.conditions[0]
        name, met = condition.name, [head for head in heads if all(c.meets(head) for c in self.conditions)]
        wanted: float | str = condition.wanted if name == "role" else float(condition.wanted)
        sign, wanted = (self.sign, self.wanted) if self.about == "count" else (condition.sign, wanted)

        def verdict(holds: bool, found: str, head: Any = None, value: float | None = None) -> Verdict:
            figure = None if head is None else head.figures.get(name)
            value, error = (value, None) if figure is None else (figure.value, figure.error)
            named = None if head is None else f"{head.site.kind} {head.name}"
            return Verdict(self.text, holds, found, value, error, named, sign, wanted)

        if self.about == "count":
            found = f"{len(met)}{': ' if met else ''}{list_some([head.name for head in met], 4)}"
            return verdict(COUNTED[self.sign](len(met), self.wanted), found, value=len(met))
        if isinstance(self.about, Head):
            deciding, *others = find_heads(self.about, heads)
            if others:
                kinds = " or ".join(f"{each.site.kind}.{each.name}" for each in (deciding, *others))
                raise SelectionError(f"which {deciding.name}? write {kinds}")
            return verdict(condition.meets(deciding), _evidence(deciding, name), deciding)
        every = self.about == "all"
        if name == "role":
            said = f"{len(met)} of {len(heads)} heads"
            return verdict(len(met) >= (len(heads) if every else 1), said)
        known = [head for head in heads if name in head.figures]
        if not known:
            return verdict(False, f"no head has it: {heads[0].absent[name]}")
        way = -1 if condition.sign.startswith(">") != every else 1  # the largest decides, or the smallest

        def place(head: HeadFigures) -> tuple[bool, float]:
            """What is no number meets nothing: it comes first among all heads, last among any."""
            value = head.figures[name].value
            return isnan(value) != every, way * value

        deciding = min(known, key=place)
        evidence = f"{_evidence(deciding, name)}, {deciding.site.kind} {deciding.name}"
        return verdict(condition.meets(deciding), evidence, deciding)


def _evidence(head: HeadFigures, name: str) -> str:
    """A head's role, or a figure with its standard error, or why there is none."""
    if name == "role":
        return head.role.name if head.role is not None else "no role"
    figure = head.figures.get(name)
    if figure is None:
        return head.absent[name]
    return f"{figure.value:.4g}" + ("" if figure.error is None else f" ±{figure.error:.2g}")


def claim(text: str) -> Claim:
    """Read ``L0H2.previous > 0.9``, ``L0H2.role = previous``, ``any.induction > 0.4``, ``all.entropy < 3`` or
    ``count(previous > 0.5) >= 2``; a kind may stand before a head, ``cross.L0H2.entropy < 1``.

    Raises ``SelectionError`` for anything else.
    """
    plain = text.strip()
    counted = re.fullmatch(r"count\((.*)\)\s*(<=|>=|!=|==?|<|>)\s*(\d{1,9})", plain, re.ASCII)
    if counted is not None:
        return Claim(plain, "count", parse_conditions(counted[1]), counted[2], int(counted[3]))
    one = re.fullmatch(r"(any|all|(?:\w+\.)?[Ll]\d+[Hh]\d+)\.(.+)", plain, re.ASCII)
    if one is None:
        raise SelectionError(
            f"cannot read the claim {text!r}: write one like 'L0H2.previous > 0.9', 'L0H2.role = previous', "
            "'any.induction > 0.4', 'all.entropy < 3' or 'count(previous > 0.5) >= 2'"
        )
    conditions = parse_conditions(one[2])
    if len(conditions) > 1:
        raise SelectionError(f"the claim {plain!r} says two things: make it two claims")
    return Claim(plain, one[1] if one[1] in ("any", "all") else Head(one[1]), conditions)


FORMAT, ROLE = 2, "role"


@record("a figure or a role that changed")
class Change:
    """A figure, or the role, of a head that differs; ``None`` where it is missing."""

    head: Annotated[str, Meaning("its head")]
    measure: Annotated[str, Meaning("its measure, or role")]
    before: Annotated[float | str | None, Meaning("in the snapshot")]
    now: Annotated[float | str | None, Meaning("in this run")]

    @property
    def size(self) -> float:
        """How far a figure moved, relative to one above 1; infinite if it is missing, or a role's name."""
        if not isinstance(self.before, float) or not isinstance(self.now, float):
            return 0.0 if self.before == self.now else inf
        return abs(self.now - self.before) / max(1.0, abs(self.before))


@record("claims and their outcome", "check")
class CheckResult:
    """Verdicts on claims, and differences from a snapshot, if one was given."""

    claims: Annotated[tuple[Verdict, ...], Meaning("every claim")]
    changes: Annotated[tuple[Change, ...] | None, Meaning("figures beyond the tolerance, and roles")] = None
    largest: Annotated[Change | None, Meaning("the figure that moved most, whether beyond or not")] = None
    notes: Notes = ()

    @derived("whether every claim holds, no figure changed, and no role")
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.claims) and not self.changes


def save_snapshot(stats: Stats, path: Path) -> None:
    """Write every figure, with all its digits, and role of every head as JSON. Raises ``OutputError``."""
    versions = {"attnscope": __version__, **{name: version(name) for name in ("torch", "transformers")}}
    content = {"attnscope snapshot": FORMAT, "title": stats.title, "versions": versions}
    content |= {"texts": _checksums(stats), "heads": _figures(stats)}
    write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def changes(stats: Stats, path: Path, tolerance: float) -> CheckResult:
    """The differences from a snapshot, head by head, and a note if that is of other texts.

    ``tolerance`` is absolute for figures up to 1, and relative to the snapshot's figure for larger ones.
    A head or figure that only one of the two has is a change. Raises ``InputError`` for any other file.
    """
    try:
        content = read_json(path)
        if content["attnscope snapshot"] != FORMAT:
            raise KeyError
        before = read(Mapping[str, Mapping[str, float | str | None]], content["heads"])
        there = read(tuple[str, ...], content["texts"])
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; --save-snapshot makes one") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} is not a snapshot that attnscope check saved") from None
    now, here, moved = _figures(stats), _checksums(stats), list[Change]()
    for head in dict.fromkeys((*before, *now)):
        old, new = before.get(head, {}), now.get(head, {})
        moved += [Change(head, name, old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))]
    largest = max((each for each in moved if 0 < each.size < inf), key=lambda each: each.size, default=None)
    sums = " there, here ".join(", ".join(some) for some in (there, here))
    note = f"the texts differ from those of {path.name}: sha256 {sums}"
    changed = tuple(each for each in moved if not each.size <= tolerance)
    return CheckResult((), changed, largest, (note,) if here != there else ())


def _figures(stats: Stats) -> dict[str, dict[str, float | str | None]]:
    """The role and the figures of every head."""
    return {
        f"{head.site.kind} {head.name}": {ROLE: head.role.name if head.role is not None else None}
        | {name: figure.value for name, figure in head.figures.items()}
        for head in stats.heads
    }


def _checksums(stats: Stats) -> tuple[str, ...]:
    """The sha256 of the text and of every file that was read."""
    about = describe_input(*(stats.read or [""]))
    return tuple(each for each in (about.sha256, *(about.files or {}).values()) if each)


ROWS = 256  # rows that are compared at a time


def check_served(served: TracedModel, model: Model) -> tuple[Verdict, ...]:
    """Whether a server's queries and keys give a model's rows on the same tokens, by layer.

    Raises ``InputError`` if the file has no token ids.
    """
    prepared = served.prepared
    if not prepared.tokens or prepared.replay is None:
        raise InputError(f"{served.name} does not name its tokens: give it input_ids, and -m MODEL")
    theirs = {each.site.layer: each for each in prepared.replay.attentions}

    def claim_of(layer: int) -> str:
        return f"rows of layer {layer} are those of {model.name}"

    found: list[Verdict] = []

    def compare(attention: Attention) -> None:
        other = theirs.pop(attention.site.layer, None)
        if other is None or attention.site.kind != "decoder":
            return
        claim, length = claim_of(attention.site.layer), len(other.queries)
        behind = len(attention.queries) - length
        if attention.heads != other.heads or len(attention.keys) != len(other.keys):
            shapes = (f"{each.heads} heads of {len(each.keys):,} keys" for each in (other, attention))
            found.append(Verdict(claim, False, " here, there ".join(shapes)))
            return
        worst = 0.0
        for start, stop in pairwise((*range(0, length, ROWS), length)):
            mine = attention.read.rows(behind + start, behind + stop, None).float()
            read = other.read.rows(start, stop, None).to(mine)
            worst = max(worst, float((mine - read).abs().max()))
        most, said = tolerance(other.dtype), f"largest difference {worst:.2g}"
        found.append(Verdict(claim, worst <= most, said, worst, operator="<=", threshold=most))

    ids = torch.tensor([[token.id for token in prepared.tokens]])
    model.run(model.prepare_tensors({"input_ids": ids}), [FunctionObserver(compare)])
    lost = (Verdict(claim_of(layer), False, "the model shows no such layer") for layer in sorted(theirs))
    return (*found, *lost)


MOST = 10  # changed figures that are listed


def check_answer(result: CheckResult, tolerance: float) -> Answer:
    """One line per claim, and what changed since the snapshot."""
    judged = [(each.holds, each.claim, each.evidence) for each in result.claims]
    changed = result.changes or ()
    if result.changes is not None:
        beyond = [each for each in changed if each.measure != ROLE]
        heads, roles, most = len({each.head for each in beyond}), len(changed) - len(beyond), result.largest
        differ = f"{len(beyond):,} figures of {heads:,} heads differ by more than"
        said = f"{differ if beyond else 'all within'} {tolerance:g}"
        said += f", {roles:,} role{'s' * (roles != 1)} changed" if roles else ""
        said += f"; largest {most.size:.2g}, {most.head}.{most.measure}" if most else ""
        judged.append((not changed, "snapshot", said))
    rows: list[tuple[Cell, ...]] = [
        ((("ok    ", "green"),) if holds else (("FAILED", "bold red"),), *words) for holds, *words in judged
    ]
    for change in changed[:MOST]:
        before, now = (
            f"{v:.4g}" if isinstance(v, float) else v or "none" for v in (change.before, change.now)
        )
        rows.append(("", f"{change.head}.{change.measure}", f"{before} before, {now} now"))
    if len(changed) > MOST:
        rows.append(("", f"and {len(changed) - MOST:,} more", ""))
    columns = Column("", long="keep"), Column("", long="fold"), Column("")
    return Answer((Table(columns, tuple(rows), notes=result.notes),), {}, lambda: result)
