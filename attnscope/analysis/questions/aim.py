"""Where a question points on the axes of one attention call, and what the rows of the call add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

import torch
from torch import Tensor

from attnscope.analysis.questions.parts import Group, word_groups
from attnscope.analysis.questions.question import Question
from attnscope.attention import Axis, Head, Site


@dataclass(frozen=True, eq=False)
class Aim:
    """A question on the axes of one call: which rows are read, and which keys they are asked about."""

    rows: dict[int, float]  # and how much each counts
    left: tuple[Group, ...]
    right: tuple[Group, ...]
    step: int | None
    word: Tensor  # [key], the word that each key is a piece of
    target: Tensor  # [word] bool
    wanted: Tensor  # [key] bool: the target's words, or nothing of a step

    @classmethod
    def of(cls, question: Question, queries: Axis, keys: Axis) -> Aim | None:
        """``None`` where one of the parts does not exist."""
        left, right, step = question.left.tokens(queries), question.right.tokens(keys), question.right.step
        if question.left.step is not None:  # each key is asked about from as many tokens away
            left, right, step = _moved(right, question.left.step, len(queries)), (), -question.left.step
        if not left or not (right or step is not None):
            return None
        rows: dict[int, float] = {}
        for group in left:
            for row in group:
                rows[row] = rows.get(row, 0.0) + 1 / len(group)
        word = list(range(len(keys)))  # a step counts tokens; else words, and the groups that are meant
        if step is None:
            meant = {key for group in right for key in group}
            for _, group in word_groups(keys):
                rest = [key for key in group if key not in meant]  # of a word, a piece may be meant
                for key in rest:
                    word[key] = rest[0]
            for group in right:
                for key in group:
                    word[key] = group[0]
        firsts = {group[0] for group in right}
        target = torch.tensor([key in firsts for key in range(len(keys))])
        each = torch.tensor(word)
        return cls(rows, left, right, step, each, target, target[each])


def _moved(groups: tuple[Group, ...], step: int, length: int) -> tuple[Group, ...]:
    """The same places so many tokens on, as far as they exist."""
    moved = (tuple(at + step for at in group if 0 <= at + step < length) for group in groups)
    return tuple(group for group in moved if group)


@dataclass(frozen=True)
class Looking:
    """How much of what one head does answers a question.

    ``weight`` is the share of the attention of the left part that goes to the right part, ``baseline`` the
    same of even attention over the open keys, and ``rank`` the place of the right part's heaviest word among
    all words of the row: 1 is the heaviest; ``None`` where every word is meant. All are means over the
    ``rows`` of the left part that may look at the right part at all; rows of one word's pieces count as one.
    """

    head: Head
    weight: float
    baseline: float
    rank: float | None
    rows: int


@dataclass(eq=False)
class Sums:
    """What the rows of one call add up to, for one question."""

    question: int
    site: Site
    count: InitVar[int]  # of heads
    aim: Aim
    everything: bool
    share: float = 0.0  # of the rows that are in the sums
    rows: int = 0

    def __post_init__(self, count: int) -> None:
        self.weight, self.baseline, self.rank = torch.zeros(3, count, dtype=torch.float64)  # [head] each

    def add(self, weights: Tensor, allowed: Tensor, start: int) -> None:
        """Rows of the call, [batch, head, row, key], from row ``start`` on."""
        mine = [row for row in self.aim.rows if start <= row < start + weights.shape[2]]
        if not mine:
            return
        part = [row - start for row in mine]
        weights, allowed = weights[:, :, part].cpu().double(), allowed[:, :, part].cpu()
        wanted, step = self.aim.wanted, self.aim.step
        if step is not None:
            wanted = torch.arange(weights.shape[-1]) == torch.tensor(mine)[:, None] + step  # [row, key]
        opened = (allowed & wanted).sum(-1)  # [batch or 1, head or 1, row]
        looks = (opened > 0).any(0).any(0)  # [row]
        share = torch.tensor([self.aim.rows[row] for row in mine], dtype=torch.float64) * looks
        even = (opened / allowed.sum(-1).clamp(min=1)).mean(0, dtype=torch.float64)
        self.weight += (weights @ wanted.double() if step is None else (weights * wanted).sum(-1)).mean(
            0
        ) @ share
        self.baseline += even @ share
        if not self.everything:
            words = torch.zeros_like(weights).index_add_(-1, self.aim.word, weights)
            best = words.masked_fill(~(self.aim.target if step is None else wanted), -1).amax(
                -1, keepdim=True
            )
            self.rank += (words > best).sum(-1).mean(0, dtype=torch.float64).add_(1) @ share
        self.share += float(share.sum())
        self.rows += int(looks.sum())

    def heads(self, numbers: Sequence[int]) -> list[Looking]:
        """The means, a head each; none where no row could look."""
        if not self.share:
            return []
        site = self.site
        table = torch.stack([self.weight, self.baseline, self.rank], 1) / self.share
        return [
            Looking(
                Head(site.layer, head, site.kind),
                weight,
                baseline,
                None if self.everything else rank,
                self.rows,
            )
            for head, (weight, baseline, rank) in zip(numbers, table.tolist(), strict=True)
        ]
