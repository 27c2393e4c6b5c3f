"""Sums of float64 numbers that do not depend on their order, so that the parts of a run add up to the whole.

A float64 is a whole number times a power of two. The sums are whole numbers of 2^-304 in several digits,
which add up exactly; the last rounding happens when a sum is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp, prod
from typing import TYPE_CHECKING, Any

from attnscope.lazy import torch
from attnscope.records import read

if TYPE_CHECKING:
    from torch import Tensor

BITS = 48  # of a digit, so that 2^14 digits and more add up in 64 bits
LOWEST = -304  # the exponent of the first digit's unit; smaller parts of an addend are dropped
DIGITS = 9  # up to 2^128; what is larger, infinite or NaN is summed apart
MOST_PENDING = 16  # addends that are added together: each operation costs more than its numbers


class ExactSum:
    """The sum of tensors of one shape."""

    def __init__(self, *addends: Tensor, digits: Tensor | None = None, rest: Tensor | None = None) -> None:
        self._pending, self._digits, self._rest = addends, digits, rest

    @property
    def shape(self) -> torch.Size:
        """The shape of the sum."""
        return self._pending[0].shape if self._digits is None else self._digits.shape[1:]

    def __add__(self, other: ExactSum) -> ExactSum:
        """The sum of both."""
        if self.shape != other.shape:
            raise ValueError(f"sums of the shapes {[*self.shape]} and {[*other.shape]}")
        digits, rest = _add(self._digits, other._digits), _add(self._rest, other._rest)
        both = ExactSum(*self._pending, *other._pending, digits=digits, rest=rest)
        carry = self._digits is not None and other._digits is not None
        return both._settled() if carry or len(both._pending) >= MOST_PENDING else both

    def _settled(self) -> ExactSum:
        """The same without pending addends."""
        digits, rest = self._digits, self._rest
        if self._pending:
            added, beyond = _split(torch.stack(self._pending))
            digits, rest = _add(digits, added), _add(rest, beyond)
        assert digits is not None
        return ExactSum(digits=_carry(digits), rest=rest)

    def value(self) -> Tensor:
        """The sum, rounded.  -> float64"""
        if self._digits is None and len(self._pending) == 1:
            return self._pending[0]
        settled = self._settled()
        assert settled._digits is not None
        assert settled._rest is not None
        negative = settled._digits[-1] < 0
        digits = _carry(torch.where(negative, -settled._digits, settled._digits))
        value = torch.zeros_like(settled._rest)
        for number, digit in enumerate(digits):  # the smallest first
            value += digit.double() * _unit(number)
        return torch.where(negative, -value, value) + settled._rest

    def place(self, rows: Sequence[int], count: int) -> ExactSum:
        """Its rows at these places among ``count`` rows, of zeros elsewhere.  -> [row, ...]"""
        if [*rows] == [*range(count)] == [*range(self.shape[0])]:
            return self

        def moved(part: Tensor, axis: int) -> Tensor:
            size = (*part.shape[:axis], count, *part.shape[axis + 1 :])
            return part.new_zeros(size).index_copy_(axis, torch.tensor(rows, dtype=torch.int64), part)

        digits, rest = self._digits, self._rest
        pending = (moved(each, 0) for each in self._pending)
        return ExactSum(
            *pending,
            digits=None if digits is None else moved(digits, 1),
            rest=None if rest is None else moved(rest, 0),
        )

    def state(self) -> dict[str, Any]:
        """The sum as plain lists, which JSON keeps exactly."""
        settled = self if len(self._pending) < 2 and self._digits is None else self._settled()
        parts = {} if settled._digits is None else {str(n): part for n, part in enumerate(settled._digits)}
        named = {"addend": settled._pending[0]} if settled._pending else {"rest": settled._rest, **parts}
        used = {name: part.flatten().tolist() for name, part in named.items() if bool(part.ne(0).any())}
        return {"shape": [*self.shape], **used}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ExactSum:
        """What ``state`` wrote down. Raises ``ValueError`` or ``TypeError`` for anything else."""
        shape, parts = read(tuple[int, ...], state["shape"]), {**state}
        del parts["shape"]
        if any(len(part) != prod(shape) for part in parts.values()) or prod(shape) > MOST_NUMBERS:
            raise ValueError("the sums are of several shapes")
        floats = {
            name: torch.tensor(parts.pop(name), dtype=torch.float64).view(shape)
            for name in ("addend", "rest")
            if name in parts
        }
        digits = torch.zeros(DIGITS, *shape, dtype=torch.int64)
        for number, part in parts.items():
            if not all(type(digit) is int for digit in part):
                raise TypeError("a digit is no whole number")
            digits[range(DIGITS)[int(number)]] = torch.tensor(part, dtype=torch.int64).view(shape)
        zeros = torch.zeros(shape, dtype=torch.float64)
        if "addend" in floats:
            return cls(floats["addend"])
        return cls(digits=_carry(digits), rest=floats.get("rest", zeros))


MOST_NUMBERS = 1 << 22  # of a sum that is read: every label of the largest file, for 128 heads


def _unit(number: int) -> float:
    return 2.0 ** (LOWEST + BITS * number)


def _add(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _split(addends: Tensor) -> tuple[Tensor, Tensor]:
    """The digits of the sum of tensors, and what has none.  [addend, ...] -> [digit, ...], [...]"""
    small = addends.abs() < 2.0 ** (LOWEST + BITS * DIGITS)  # false for NaN
    left = torch.where(small, addends, 0)
    digits = torch.zeros(DIGITS, *addends.shape[1:], dtype=torch.int64)
    largest = float(left.abs().max()) if left.numel() else 0.0
    first = (frexp(largest)[1] - LOWEST) // BITS
    for number in range(min(first, DIGITS - 1), -1, -1) if largest else ():
        whole = (left / _unit(number)).trunc()
        digits[number] = whole.long().sum(0)
        left = left - whole * _unit(number)  # exact, as powers of two are
        if not bool(left.any()):
            break
    return digits, torch.where(small, 0, addends).sum(0)


def _carry(digits: Tensor) -> Tensor:
    """The only digits of these sums in which all but the last are from 0 to 2^BITS - 1."""
    digits = digits.clone()
    for number in range(DIGITS - 1):
        over = digits[number] >> BITS
        digits[number] -= over << BITS
        digits[number + 1] += over
    return digits
