"""What the questions of all texts add up to, for each head, label and half of the corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.attention import Site
from attnscope.measures.sums import read_site

REACH = 100
"""Words: no fixed offset that is farther is tried as a baseline."""


class Ratio(NamedTuple):
    """A mean over questions and its standard error over texts, ``None`` for a single text."""

    value: float
    error: float | None


@dataclass(eq=False)
class SiteSums:
    """The sums of one site, all float64.

    ``asked`` counts questions, ``texts`` those with any; ``asked_squared`` adds up the squares of the texts'
    counts. ``right`` and ``weight`` add up by head the sum of each text, its square, and its product with the
    text's count; ``even`` adds up the weight on even attention, ``offsets`` the answers at each distance.
    """

    asked: Tensor  # [slot]
    asked_squared: Tensor  # [slot]
    texts: Tensor  # [slot]
    even: Tensor  # [slot]
    offsets: Tensor  # [slot, distance]
    right: Tensor  # [slot, sum | square | product, head]
    weight: Tensor  # [slot, sum | square | product, head]

    @classmethod
    def zeros(cls, slots: int, heads: int) -> SiteSums:
        """Nothing yet."""
        shapes = ((slots,),) * 4 + ((slots, 2 * REACH + 1),) + ((slots, 3, heads),) * 2
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def add(self, other: SiteSums) -> None:
        """Add the sums of other texts; the later one may have more slots."""
        for each in fields(self):
            mine, more = getattr(self, each.name), getattr(other, each.name)
            size = max(len(mine), len(more))
            setattr(self, each.name, _grown(mine, size) + _grown(more, size))

    def add_units(self, slot: Tensor, asked: Tensor, even: Tensor, right: Tensor, weight: Tensor) -> None:
        """Add what each text has for a slot: [unit] each, and by head [unit, head]."""
        self.asked.index_add_(0, slot, asked)
        self.asked_squared.index_add_(0, slot, asked.square())
        self.texts.index_add_(0, slot, (asked > 0).double())
        self.even.index_add_(0, slot, even)
        for sums, found in ((self.right, right), (self.weight, weight)):
            sums.index_add_(0, slot, torch.stack([found, found.square(), found * asked[:, None]], 1))

    def part(self, rows: list[int]) -> SiteSums:
        """The sums of some slots together, as one slot."""
        return SiteSums(*(getattr(self, each.name)[rows].sum(0, keepdim=True) for each in fields(self)))

    def ratios(self, sums: Tensor) -> list[Ratio]:
        """The means of a slot that stands alone, and their standard errors, by head.  [1, 3, head]

        The error is that of a ratio of sums over texts, as ``measures.sums.Sums.figures`` has it.
        """
        (total, squares, products), asked, texts = sums[0], self.asked[0], float(self.texts[0])
        means = total / asked
        spread = squares - 2 * means * products + means.square() * self.asked_squared[0]
        errors = (spread.clamp_min(0) * texts / max(texts - 1, 1)).sqrt() / asked
        return [
            Ratio(mean, error if texts > 1 else None)
            for mean, error in zip(means.tolist(), errors.tolist(), strict=True)
        ]


class GoldSums:
    """The sums of every site."""

    def __init__(self) -> None:
        self.sites: dict[Site, SiteSums] = {}
        self.heads: dict[Site, tuple[int, ...]] = {}

    def at(self, site: Site, heads: tuple[int, ...], slots: int) -> SiteSums:
        """The sums of a site, made when they are first asked for."""
        if site not in self.sites:
            self.sites[site], self.heads[site] = SiteSums.zeros(slots, len(heads)), heads
        return self.sites[site]

    def state(self) -> list[dict[str, Any]]:
        """The sums as plain lists, which JSON keeps exactly."""
        return [
            {"site": asdict(site), "heads": list(self.heads[site])}
            | {each.name: getattr(sums, each.name).tolist() for each in fields(sums)}
            for site, sums in self.sites.items()
        ]

    @classmethod
    def from_state(cls, state: Sequence[Mapping[str, Any]], slots: int) -> GoldSums:
        """What ``state`` wrote down, of at most so many slots. Raises ``ValueError``."""
        made = cls()
        for entry in state:
            heads = tuple(entry["heads"])
            if not all(type(head) is int and head >= 0 for head in heads) or not heads:
                raise ValueError("these are no heads")
            sums = made.at(read_site(entry["site"]), heads, len(entry["asked"]))
            for each in fields(sums):
                read = torch.tensor(entry[each.name], dtype=torch.float64)
                if len(read) > slots or read.shape != getattr(sums, each.name).shape:
                    raise ValueError("the sums are of several shapes")
                setattr(sums, each.name, read)
        return made

    def merge(self, other: GoldSums) -> None:
        """Add the sums of other texts."""
        for site, sums in other.sites.items():
            self.at(site, other.heads[site], len(sums.asked)).add(sums)


def _grown(sums: Tensor, size: int) -> Tensor:
    return F.pad(sums, (0, 0) * (sums.ndim - 1) + (0, size - len(sums)))
