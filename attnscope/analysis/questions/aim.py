"""Where a question points on the axes of one attention call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.analysis.questions.parts import Group, Question, word_groups
from attnscope.attention import Axis


@dataclass(frozen=True, eq=False)
class Aim:
    """A question on the axes of one call: which rows are read, and which keys they are asked about."""

    rows: dict[int, float]  # and how much each counts
    left: tuple[Group, ...]
    right: tuple[Group, ...]
    step: int | None
    word: Tensor  # [key], the word that each key is a piece of
    target: Tensor  # [word] bool

    @classmethod
    def of(cls, question: Question, queries: Axis, keys: Axis) -> Aim | None:
        """``None`` where one of the parts does not exist."""
        left, step = question.left.tokens(queries), question.right.step
        right = () if step is not None else question.right.tokens(keys)
        if not left or not (right or step is not None):
            return None
        rows: dict[int, float] = {}
        for group in left:
            for row in group:
                rows[row] = rows.get(row, 0.0) + 1 / len(group)
        word = torch.arange(len(keys))  # a step counts tokens; else words, and the groups that are meant
        target = torch.zeros(len(keys), dtype=torch.bool)
        if step is None:
            meant = {key for group in right for key in group}
            for _, group in word_groups(keys):
                if rest := [key for key in group if key not in meant]:  # of a word, a piece may be meant
                    word[rest] = rest[0]
            for group in right:
                word[list(group)] = group[0]
                target[group[0]] = True
        return cls(rows, left, right, step, word, target)
