"""Which kind of attention a call is, and which layer number it gets.

Kinds come from the module's path and class, from the tensors, and from how the module was called; never
from the model's config, which lies or raises for mixed models.

Layers count from 0 within a kind. A *stack* is the set of module paths that differ in their numbers
only. The first stack of a kind keeps the number in its paths, if there is exactly one, so that a layer
without attention leaves a hole. A later stack of that kind (a second tower, a second attention in
every block) counts on from the end of the stacks before it. Where the path has no number or several
(nested lists, ALBERT's groups), and where a shared module runs again in the same pass, calls get
the next free number. So no two calls of one kind in one pass share a number, but for the pieces of one
module call, which share theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from attnscope.attention import Attention, Kind

CROSS = re.compile(r"cross|enc_?dec|encoder_attn|encoder_attention|encoder_decoder", re.I)
DECODER = re.compile(r"(^|[._])decoders?($|[._])|decoder_?layer", re.I)


@dataclass
class LayerNumbers:
    """Hands out layer numbers in one pass over the model; the rule is this file's docstring."""

    _starts: dict[tuple[Kind, str], int] = field(default_factory=dict)
    _ends: dict[Kind, int] = field(default_factory=dict)
    _given: dict[tuple[Kind, str, int], int] = field(default_factory=dict)
    _taken: set[tuple[Kind, int]] = field(default_factory=set)

    def number(self, kind: Kind, name: str, invocation: int, width: int) -> int:
        """The layer of one call of module ``name``, whose module list has ``width`` entries."""
        key = (kind, name, invocation)
        if key not in self._given:
            self._given[key] = self._next(kind, name, width)
            self._taken.add((kind, self._given[key]))
            self._ends[kind] = max(self._ends.get(kind, 0), self._given[key] + 1)
        return self._given[key]

    def _next(self, kind: Kind, name: str, width: int) -> int:
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if len(numbers) == 1:
            stack = (kind, ".".join("*" if part.isdigit() else part for part in name.split(".")))
            start = self._starts.setdefault(stack, self._ends.get(kind, 0))
            self._ends[kind] = max(self._ends.get(kind, 0), start + width)
            if (kind, start + numbers[0]) not in self._taken:
                return start + numbers[0]
        return self._ends.get(kind, 0)


def is_cross_by_name(name: str, classes: Sequence[str]) -> bool:
    """Whether a module's path behind its last number, or a class around it, says cross-attention."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    tail = parts[numbers[-1] + 1 if numbers else 0 :][-3:]
    return any(CROSS.search(part) for part in tail) or any("cross" in part.lower() for part in classes)


def is_causal(attention: Attention) -> bool:
    """Whether no query sees a key behind its own position, in a handful of rows across the map."""
    count = len(attention.queries)
    if attention.offset is None or count < 2:
        return False
    for row in sorted({round(step * (count - 1) / 7) for step in range(8)}):
        later = attention.allowed(row, row + 1)[..., row + attention.offset + 1 :]
        if bool(later.any()):
            return False
    return True


def offset_of(attention: Attention) -> int:
    """The position of query 0 on the key axis of self-attention: the count of keys that came before it.

    Equal lengths say 0. Otherwise the mask says it, if it is causal: the row whose last open key lies
    furthest right of its own number sees itself there (a static cache has empty keys behind that). Under
    a mask that is wide open the queries are the last of the keys.
    """
    queries, keys = len(attention.queries), len(attention.keys)
    if queries == keys:
        return 0
    allowed = attention.allowed(0, queries)  # [batch or 1, head or 1, query, key]
    position = torch.arange(keys, device=allowed.device)
    last = torch.where(allowed, position, -1).amax(-1).amax((0, 1))  # [query]
    lag = last - torch.arange(queries, device=last.device)
    furthest = int(lag[last >= 0].max()) if bool((last >= 0).any()) else keys
    return max(0, min(furthest, keys - queries))
