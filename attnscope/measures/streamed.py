"""Sums of figures from the statistics of a single pass, with baselines in closed form.

Where the open keys of a row are one run of neighbours, even attention over them needs no N² numbers: how many
keys, tokens or pairs lie in the run is a difference of running counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.fused.matches import Matches
from attnscope.fused.statistics import Statistics
from attnscope.measures.block import TokenFacts
from attnscope.measures.sums import OFFSET_BINS, Sums

PAIRS = ("duplicate", "induction")
COVERED = (
    *("entropy", "spread", "span", "confidence", "sink", "distance", "offset"),
    *("self", "previous", "next", "first", "special", "punctuation", *PAIRS),
)
"""The measures that a single pass tells."""


@dataclass(frozen=True, eq=False)
class Streamed:
    """One attention call by its statistics. Rows are float64 here, ``[batch or 1, head or 1, row]``."""

    statistics: Statistics
    keys: TokenFacts | None

    def covers(self, names: Iterable[str], offset: int | None) -> bool:
        """Whether every one of the measures can be told, for rows that begin at ``offset``."""
        names = set(names)
        if self.keys is not None and bool((self.keys.segment == self.keys.segment[:, :1]).all()):
            names.discard("segment")  # no row has a key of another segment
        pairs = names.intersection(PAIRS)
        return (
            names <= set(COVERED)
            and pairs <= set(self.statistics.matched)
            and (offset is None or offset == self.statistics.offset)
        )

    def sums(self, measures: Sequence[str], absent: Mapping[str, str]) -> Sums:
        """The sums of a batch of texts, as from all rows, but for the offsets of largest weights."""
        batch, heads, _ = self.statistics.entropy.shape
        chosen, forced = torch.zeros(2, 3, len(measures), batch, heads, dtype=torch.float64)
        choice = self.statistics.runs.count[:, None] > 1  # [batch or 1, 1, row]
        for index, name in enumerate(measures):
            if name in absent or name == "segment":
                continue
            if name in PAIRS:
                self._pair_sums(name, choice, chosen[:, index], forced[:, index])
            elif name in ("special", "punctuation", "offset", "distance"):
                self._total_sums(name, choice, chosen[:, index], forced[:, index])
            else:
                value, even, counts = self._rows(name)
                for into, group in ((chosen, choice), (forced, ~choice)):
                    taken = counts & group
                    into[0, index] += taken.sum(-1)
                    into[1, index] += torch.where(taken, value, 0).sum(-1)
                    into[2, index] += torch.where(taken, even, 0).sum(-1)
        offsets = torch.zeros(heads, OFFSET_BINS, dtype=torch.float64)
        return Sums.of_texts(chosen, forced, offsets)

    @property
    def _position(self) -> Tensor:
        """Position of each row on the key axis.  -> [row]"""
        return torch.arange(self.statistics.entropy.shape[-1]) + self.statistics.offset

    @property
    def _open(self) -> Tensor:
        """Number of open keys.  -> [batch or 1, 1, row]"""
        return self.statistics.runs.count[:, None].double()

    def _rows(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """A figure of every row, the same on even attention, and which rows count."""
        found, open_ = self.statistics, self._open
        entropy, position = found.entropy.double().clamp_min(0), self._position
        last = found.column.shape[-1] - 1
        if name == "entropy":
            return entropy, open_.log(), open_ > 1
        if name == "spread":
            return entropy / open_.clamp_min(2).log(), torch.ones_like(open_), open_ > 1
        if name == "span":
            return entropy.exp(), open_, open_ > 1
        if name == "confidence":
            return found.confidence.double(), 1 / open_, open_ > 1
        if name == "sink":
            return 1 - found.total.double(), torch.zeros_like(open_), open_ > 0
        value, key, counts = {
            "self": (found.own, position, position <= last),
            "previous": (found.previous, position - 1, position > 0),
            "next": (found.following, position + 1, position < last),
            "first": (found.first, torch.zeros_like(position), position > 0),
        }[name]
        inside = (found.runs.low <= key) & (key < found.runs.high)  # [batch or 1, row]
        return value.double(), inside[:, None] / open_, counts.expand(open_.shape)

    def _total_sums(self, name: str, choice: Tensor, chosen: Tensor, forced: Tensor) -> None:
        """Measures whose rows all count, from sums over all rows; a row with one open key is known."""
        found, runs, position = self.statistics, self.statistics.runs, self._position
        only = found.total.double()  # what a row with one open key has on it
        if name in ("special", "punctuation"):
            assert self.keys is not None
            marked = getattr(self.keys, name).double()  # [text, key]
            value = (found.column.double() * marked[:, None]).sum(-1)  # [batch, head]
            texts = max(len(marked), len(runs.low))
            marked = marked.expand(texts, -1)
            low, high = runs.low.expand(texts, -1), runs.high.expand(texts, -1)
            before = torch.nn.functional.pad(marked.cumsum(-1), (1, 0))  # marked keys before each key
            even = ((before.gather(1, high) - before.gather(1, low)) / runs.count)[:, None]
            lone = only * marked.gather(1, low)[:, None]
        else:
            low, last = runs.low.double() - position, runs.high.double() - 1 - position
            gap = (low + last) / 2  # of the middle of the run from the row, [batch or 1, row]
            if name == "offset":
                keys = torch.arange(found.column.shape[-1], dtype=torch.float64)
                value = (found.column.double() * keys).sum(-1) - (only * position).sum(-1)
                even, lone = gap[:, None], only * low[:, None]
            else:
                value = found.distance
                even, lone = _mean_distance(low, last)[:, None], only * low.abs()[:, None]
        lone_sum = torch.where(choice, 0, lone).sum(-1)
        for into, group, summed in ((chosen, choice, value - lone_sum), (forced, ~choice, lone_sum)):
            into[0] += group.sum(-1)
            into[1] += summed
            into[2] += torch.where(group, even, 0).sum(-1)

    def _pair_sums(self, name: str, choice: Tensor, chosen: Tensor, forced: Tensor) -> None:
        """Measures of matching pairs; rows that have one count."""
        value, matches = self.statistics.matched[name]
        count = _counts(matches)[:, None]  # [batch, 1, row]
        counts = count > 0
        lone_sum = torch.where(counts & ~choice, self.statistics.total.double(), 0).sum(-1)
        for into, group, summed in ((chosen, choice, value - lone_sum), (forced, ~choice, lone_sum)):
            taken = counts & group
            into[0] += taken.sum(-1)
            into[1] += summed
            into[2] += torch.where(taken, count / self._open, 0).sum(-1)


def _counts(matches: Sequence[Matches]) -> Tensor:
    """Matching keys of each row.  -> [batch, row]"""
    return torch.stack([each.count for each in matches])


def _mean_distance(low: Tensor, last: Tensor) -> Tensor:
    """Mean of ``|g|`` over the whole numbers ``low <= g <= last``, elementwise."""
    ahead, behind = last.clamp_min(0), (-low).clamp_min(0)
    whole = (ahead * (ahead + 1) + behind * (behind + 1)) / 2  # both sides of the row, if the run has both
    skipped_ahead, skipped_behind = (low - 1).clamp_min(0), (-last - 1).clamp_min(0)
    skipped = (skipped_ahead * (skipped_ahead + 1) + skipped_behind * (skipped_behind + 1)) / 2
    return (whole - skipped) / (last - low + 1)
