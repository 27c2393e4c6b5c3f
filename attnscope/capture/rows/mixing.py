"""A mixer that is linear in its values as a signed matrix per head, by feeding it identity values.

Whatever is linear in its values is a matrix: values that are 1 at one token and 0 elsewhere give its column.
The model's own kernel runs again, with its other inputs as in the pass, so no formula is assumed. Where one
matrix serves all channels of a head, each channel carries another token, and one run gives as many columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnscope.capture.hooks.functions import quietly
from attnscope.capture.record import tolerance

SCANNED = 1 << 20  # numbers of a factor of a scan's matrix that are held at a time
BLOCK_BYTES = 1 << 30  # of rows that are held at a time; each block costs all runs of the kernel again
LARGEST_ERROR = 1e-5  # of A @ values against the output, over its largest number, but of half types
LARGEST_ABOVE = 1e-6  # what of the largest weight may lie above the diagonal of a causal mixer: rounding

MISSES = (
    "identity values give a matrix that misses its output by {:.1g} of the largest number: it is not linear "
    "in its values, or no one matrix serves a head"
)


class NoMatrix(Exception):
    """A mixer is no matrix: what identity values gave does not reproduce its output."""


@dataclass(eq=False)
class Proof:
    """What all columns together showed: shared by all readers of a mixer, and filled by the first."""

    difference: float | None = None  # of A @ values from the output, over its largest number
    causal: bool = True
    sums: tuple[float, float] = (0.0, 0.0)  # the smallest and the largest row sum
    runs: int = 0  # of the kernel


@dataclass(frozen=True, eq=False)
class Scan:
    """A state-space scan (Gu and Dao 2023) at its values in a pass: each channel's matrix by closed form.

    ``state[t] = exp(decay · step[t]) · state[t-1] + step[t] · written[t] · value[t]``, and the output is
    ``gate[t] · (read[t] · state[t] + skip · value[t])``. With a token m between key and row, the decay from
    one to the other is that up to m times that from m on, so blocks of all channels are matrix products.
    """

    step: Tensor  # [channel, token]
    decay: Tensor  # [channel, size]
    written: Tensor  # [token, size]
    read: Tensor  # [token, size]
    skip: Tensor  # [channel]
    gate: Tensor  # [channel, token]

    def blocks(self, channels: slice) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Blocks below the diagonal: their rows, keys, and factors of both, for some channels.

        -> rows, keys: [block, token]; row factor, key factor: [block, token, channel, size]
        """
        step, decay, tokens = self.step[channels], self.decay[channels], self.step.shape[1]
        time = step.double().cumsum(1).T  # a float32 sum of many steps is too coarse for its differences
        read = self.gate[channels].T[:, :, None] * self.read[:, None]  # [token, channel, size]
        written, size = step.T[:, :, None] * self.written[:, None], 1
        while size < tokens:
            middle = torch.arange(size, tokens, 2 * size, device=step.device)[:, None]
            keys = middle - size + torch.arange(size, device=step.device)
            rows, at = (keys + size).clamp(max=tokens - 1), time[middle - 1]
            after, before = (each.to(step)[..., None] for each in (time[rows] - at, at - time[keys]))
            inside = (keys + size < tokens)[..., None, None]
            yield (
                rows,
                keys,
                read[rows] * (decay * after).exp() * inside,
                written[keys] * (decay * before).exp(),
            )
            size *= 2

    def diagonal(self, channels: slice) -> Tensor:
        """What each token keeps of its own value.  -> [channel, token]"""
        own = self.step[channels] * (self.read * self.written).sum(-1)
        return self.gate[channels] * (own + self.skip[channels, None])


@dataclass(frozen=True, eq=False)
class MixingRows:
    """The rows of one call of a mixer; its matrix is computed when a row is first read.

    ``kernel`` gives the output of other values; several heads may share theirs. Without ``shared``, each
    channel has its own matrix, and one ``channel`` is read, or the mean over those of a head. All channels
    are proved. ``scans``, one a text, take the place of identity values if they give the output likewise.
    """

    kernel: Callable[[Tensor], Tensor]
    values: Tensor  # [batch, key, value head, channel]
    output: Tensor  # what the kernel returned for them, [batch, query, head, channel]
    shared: bool
    heads: tuple[int, ...] | None = None  # those that are read, if not all
    scans: tuple[Scan, ...] = ()
    channel: int | None = None
    share: int = 1  # of the memory: all of it, or one of so many parts
    proof: Proof = field(default_factory=Proof)
    _held: dict[int, Tensor] = field(default_factory=dict, repr=False)  # the last block, by its first row

    def only(self, heads: Sequence[int]) -> MixingRows:
        """The same rows of these heads alone, which hold less memory."""
        return replace(self, heads=tuple(self._numbers(heads)), _held={})

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Signed weights, float32 or float64.  -> [batch, head, row, key]

        Raises ``NoMatrix`` if they do not reproduce the mixer's output.
        """
        first = next(iter(self._held), None)
        if first is None or not first <= start <= stop <= first + self._held[first].shape[2]:
            self._held.clear()
            self._held[first := start] = self._block(start, stop)
        rows = self._held[first][:, :, start - first : stop - first]
        return rows if heads is None else rows[:, list(heads)]

    def allowed(self, start: int, stop: int) -> Tensor:
        """The keys up to each row of a causal mixer; all of another.  -> bool, [1, 1, row, key]"""
        if self.proof.difference is None:
            self.rows(start, stop, None)
        size = stop - start, self.values.shape[1]
        opened = torch.ones(size, dtype=torch.bool, device=self.values.device)
        return (opened.tril(start) if self.proof.causal else opened)[None, None]

    def columns(self, rest: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Blocks of columns: the first key, the columns, and what these keys' values add to the output.

        ``rest`` comes out without values.  -> [batch, head, query, key], [batch, query, head, channel]
        """
        values, tokens = self.values.to(rest), self.values.shape[1]
        values = values.repeat_interleave(self.output.shape[2] // values.shape[2], 2)
        step = self.values.shape[3] if self.shared else 1
        for start in range(0, tokens, step):
            keys = slice(start, min(start + step, tokens))
            count, identity = keys.stop - start, torch.zeros_like(self.values)
            if self.shared:
                identity[:, keys, :, :count] = torch.eye(count).to(identity)[:, None]
            else:
                identity[:, keys] = 1
            made = self._run(identity) - rest
            if self.shared:
                columns = made[..., :count].permute(0, 2, 1, 3)
                yield start, columns, torch.einsum("bhqk,bkhc->bqhc", columns, values[:, keys])
            else:
                of_one = (
                    made[..., self.channel, None] if self.channel is not None else made.mean(-1, keepdim=True)
                )
                yield start, of_one.permute(0, 2, 1, 3), made * values[:, keys]

    def _run(self, values: Tensor) -> Tensor:
        """The output of other values, in float32, or float64 of such a model."""
        output = self.kernel(values)
        return output.to(torch.promote_types(output.dtype, torch.float32))

    def _numbers(self, heads: Sequence[int]) -> list[int]:
        return list(heads if self.heads is None else (self.heads[head] for head in heads))

    def _block(self, start: int, stop: int) -> Tensor:
        """The rows from ``start`` on, at least to ``stop``, as many as may be held; proves the first time."""
        (batch, queries, every, _), keys = self.output.shape, self.values.shape[1]
        heads = list(range(every)) if self.heads is None else list(self.heads)
        most = BLOCK_BYTES // (4 * batch * len(heads) * keys * self.share)
        rows = slice(start, min(queries, max(stop, start + most)))
        kind = torch.promote_types(self.values.dtype, torch.float32)
        block = self.values.new_zeros(batch, len(heads), rows.stop - start, keys, dtype=kind)
        half = self.values.dtype in (torch.float16, torch.bfloat16)
        most_allowed = tolerance(self.values.dtype) if half else LARGEST_ERROR
        if self.scans and not self.proof.runs:
            with quietly():
                self._scan(block[:, 0], start)
            if self.proof.difference is not None and self.proof.difference <= most_allowed:
                return block
            self.proof.difference = None
            block.zero_()
        with quietly():
            rest = self._run(torch.zeros_like(self.values))  # a bias
            again, sums, above, largest = rest, torch.zeros(()), 0.0, 0.0
            for runs, (key, columns, part) in enumerate(self.columns(rest), 2):
                block[..., key : key + columns.shape[-1]] = columns[:, heads, rows]
                if self.proof.difference is not None:
                    continue
                again, sums = again + part, sums.to(columns) + columns.sum(-1)
                largest = max(largest, float(columns.abs().max()))
                later = columns[:, :, : key + columns.shape[-1]].triu(1 - key)
                above = max(above, float(later.abs().max()))
                self.proof.runs = runs
            if self.proof.difference is None:
                output = self.output.to(again)
                self.proof.difference = float((again - output).abs().max() / (output.abs().max() or 1))
                self.proof.causal = queries == keys and above <= LARGEST_ABOVE * largest
                self.proof.sums = float(sums.min()), float(sums.max())
        if not (error := self.proof.difference) <= most_allowed:
            self.proof.difference = None
            raise NoMatrix(MISSES.format(error))
        return block

    def _scan(self, block: Tensor, start: int) -> None:
        """Add the rows from ``start`` on to a block of zeros, [batch, row, key]; proves the first time."""
        (tokens, channels), count = self.values.shape[1::2], block.shape[1]
        values: Tensor = self.values[:, :, 0].to(block)  # [batch, token, channel]
        again = torch.zeros_like(values)
        for text, scan in enumerate(self.scans):
            step = max(1, SCANNED // (tokens * scan.decay.shape[1]))
            groups = [slice(at, min(at + step, channels)) for at in range(0, channels, step)]
            read = groups if self.channel is None else [slice(self.channel, self.channel + 1)]
            for group in read:
                for rows, keys, left, right in scan.blocks(group):
                    inside = (rows >= start) & (rows < start + count)
                    left, rows = left * inside[..., None, None], (rows - start).clamp(0, count - 1)
                    product = left.flatten(2) @ right.flatten(2).mT
                    block[text].index_put_((rows[:, :, None], keys[:, None]), product, accumulate=True)
                own = scan.diagonal(group).sum(0)[start : start + count]
                block[text, torch.arange(count), torch.arange(start, start + count)] += own
            block[text] /= channels if self.channel is None else 1
            for group in groups if self.proof.difference is None else ():
                mine = values[text, :, group]
                for rows, keys, left, right in scan.blocks(group):
                    state = torch.einsum("bkcs,bkc->bcs", right, mine[keys])
                    part = torch.einsum("bqcs,bcs->bqc", left, state)
                    again[text, :, group] = again[text, :, group].index_put((rows,), part, accumulate=True)
                again[text, :, group] += scan.diagonal(group).T * mine
        if self.proof.difference is None:
            output = self.output[:, :, 0].to(again)
            self.proof.difference = float((again - output).abs().max() / (output.abs().max() or 1))
            sums = block.sum(-1)
            self.proof.sums = float(sums.min()), float(sums.max())
