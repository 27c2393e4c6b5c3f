"""The sums and counts behind figures. They add up over blocks, texts, processes and machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from attnscope.attention import Kind, Site
from attnscope.figures import Figure

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.fused.statistics import Statistics
    from attnscope.measures.block import TokenFacts
    from attnscope.measures.measure import Measure


def read_site(state: Mapping[str, Any]) -> Site:
    """A site as a file stores it. Raises ``ValueError`` or ``TypeError`` for anything else."""
    site = Site(**state)
    numbers = all(type(number) is int and 0 <= number < 1 << 31 for number in (site.call, site.layer))
    if not (numbers and isinstance(site.name, str) and site.kind in get_args(Kind)):
        raise ValueError(f"{site} is not a site")
    return site


NAMES = (
    "rows", "value", "baseline", "lone_rows", "lone_value", "lone_baseline",
    "texts", "text_value_squared", "text_value_rows", "text_rows_squared",
)  # fmt: skip


@dataclass(frozen=True)
class Sums:
    """The sums of one site: ``[name, measure, head]`` float64; counts are exact up to 2^53.

    ``rows``, ``value`` and ``baseline`` sum over the rows with a choice (two open keys or more);
    ``lone_*`` over the rows that count with one open key. ``texts`` counts the texts with a row that
    counted; the last three are sums over texts of the squared sum of values, of that sum times the number
    of rows, and of the squared number of rows, from which the standard error is computed.
    """

    numbers: Tensor  # in the order of ``NAMES``
    top: Tensor | None = None  # [head], the largest score before the softmax, if it is measured

    @classmethod
    def of_texts(cls, choice: Tensor, lone: Tensor) -> Sums:
        """Sum over the texts of a batch, both ``[rows|value|baseline, measure, text, head]``."""
        import torch

        rows, value, _baseline = choice + lone  # [measure, text, head]
        spread = torch.stack([(rows > 0).double(), value.square(), value * rows, rows.square()])
        return cls(torch.cat([choice, lone, spread]).sum(2))

    def __add__(self, other: Sums) -> Sums:
        """The sum of both."""
        import torch

        tops = [sums.top for sums in (self, other) if sums.top is not None]
        return Sums(self.numbers + other.numbers, torch.stack(tops).amax(0) if tops else None)

    def figures(self, lone: bool = True) -> list[list[Figure | None]]:
        """Averages over all rows that counted, or over those with a choice.  -> [head][measure]

        ``None`` where no row counted. The standard error is that of a ratio of sums over texts: with sums
        ``s_t`` over ``n_t`` rows of ``T`` texts and the figure ``f``, it is
        ``sqrt(T / (T - 1) Σ (s_t - f n_t)²) / Σ n_t`` (Cochran 1977, Sampling Techniques, 6.4).
        """
        rows, value, baseline = self.numbers[:3] + self.numbers[3:6] if lone else self.numbers[:3]
        texts, squared, with_rows, rows_squared = self.numbers[6:]
        value, baseline = value / rows, baseline / rows
        squares = squared - 2 * value * with_rows + value.square() * rows_squared
        error = (squares.clamp_min(0) * texts / (texts - 1)).sqrt() / rows
        columns = [tensor.T.tolist() for tensor in (value, baseline, rows, texts, error)]
        return [
            [
                Figure(v, b, int(n), int(t), e if lone and t > 1 else None) if n else None
                for v, b, n, t, e in zip(*head, strict=True)
            ]
            for head in zip(*columns, strict=True)
        ]

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        top = {} if self.top is None else {"top": self.top.tolist()}
        return dict(zip(NAMES, self.numbers.tolist(), strict=True)) | top

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Sums:
        """Restore sums from ``state``. Raises ``ValueError`` where they do not fit together."""
        import torch

        numbers = torch.tensor([state[name] for name in NAMES], dtype=torch.float64)
        if numbers.ndim != 3:
            raise ValueError("the sums are of several shapes")
        return cls(numbers, torch.tensor(state["top"], dtype=torch.float64) if "top" in state else None)


def sums_of_statistics(
    measures: Sequence[Measure], statistics: Statistics, keys: TokenFacts | None
) -> Tensor | None:
    """The same sums as from all rows; ``None`` if the statistics lack what a measure needs.

    -> [choice|lone, rows|value|baseline, measure, text, head]
    """
    import torch

    totals = [measure.form.of_statistics(measure.name, statistics, keys) for measure in measures]
    lone = (statistics.runs.count == 1)[:, None]  # [batch or 1, 1, row]
    sums = statistics.column.new_zeros(2, 3, len(measures), *statistics.column.shape[:2], dtype=torch.float64)
    for place, total in enumerate(totals):
        if total is None:
            return None
        alone = torch.where(total.counts & lone, total.lone, 0).sum(-1)
        groups = ((total.counts & ~lone, total.value - alone), (total.counts & lone, alone))
        for group, (counts, value) in enumerate(groups):
            sums[group, 0, place] = counts.sum(-1)
            sums[group, 1, place] = value
            sums[group, 2, place] = torch.where(counts, total.baseline, 0).sum(-1)
    return sums
