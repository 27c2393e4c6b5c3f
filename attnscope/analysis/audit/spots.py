"""Which numbers of a model's input are changed, one pass each, and to what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnscope.errors import InputError
from attnscope.models import ModelInput

NO_TOKENS = re.compile(r"mask|type|segment|position|label|grid|bbox|lang|len|shape|size|time|cond", re.I)
"""Names of inputs that say something about tokens, and are none."""

SOUND = re.compile(r"feature|value|audio|spec|mel", re.I)
"""Names of inputs whose last axis may be time; of others with three axes, it is the states of a token."""

SMALL = 4
"""An axis no longer than this is one of texts or of colours: what is changed is changed in all of them."""


@dataclass(frozen=True)
class Spot:
    """A place in one input, by its name or its number: an id, or a number of a picture, sound or state."""

    input: str | int
    at: int
    pieces: bool  # numbers of which many may be of one token
    states: bool  # of a token, along the last axis

    def changed(self, prepared: ModelInput) -> ModelInput:
        """The same input with another token at this place."""
        if isinstance(self.input, int):
            arguments = list(prepared.arguments)
            arguments[self.input] = self._changed(arguments[self.input], prepared)
            return replace(prepared, arguments=tuple(arguments))
        other = self._changed(prepared.inputs[self.input], prepared)
        return replace(prepared, inputs={**prepared.inputs, self.input: other})

    def _changed(self, field: Tensor, prepared: ModelInput) -> Tensor:
        other = field.clone()
        if self.pieces:
            places = [slice(None) if size <= SMALL else self.at for size in field.shape]
            places[-1] = slice(None) if self.states else places[-1]
            other[tuple(places)] = float(field.abs().amax()) + 1 - other[tuple(places)]
            return other  # not merely shifted, which a normalization would undo
        before = _ids(field)[0, self.at]
        ordinary = _ordinary(field, prepared)
        others = [ids for ids in _ids(field)[0, ordinary] if not torch.equal(ids, before)]
        _ids(other)[:, self.at] = others[len(others) // 2] if others else (before - 1).abs()
        return other


def choose_spots(prepared: ModelInput) -> list[Spot]:
    """Neighbours, and places 2, 4, 8 ... further on, in inputs that hold tokens. Raises ``InputError``."""
    spots = list(_spots(prepared, prepared.inputs)) + list(
        _spots(prepared, dict(enumerate(prepared.arguments)))
    )
    if len(spots) < 2:
        raise InputError("an audit changes one token after another: give it a text of some tokens")
    return spots


def _spots(prepared: ModelInput, fields: Mapping[str, Tensor] | Mapping[int, Tensor]) -> Iterator[Spot]:
    for name, field in fields.items():
        if field.dtype == torch.bool or not field.ndim or NO_TOKENS.search(str(name)):
            continue
        pieces = field.is_floating_point()
        states = pieces and field.ndim == 3 and not SOUND.search(str(name))
        shape = field.shape[:-1] if states else field.shape
        sizes = [size for size in shape if size > SMALL] if pieces else []
        places: Sequence[int] = range(min(sizes, default=0)) if pieces else _ordinary(field, prepared)
        reach = [0, *(2**power for power in range(len(places).bit_length()))]
        yield from (Spot(name, places[offset], pieces, states) for offset in reach if offset < len(places))


def _ids(field: Tensor) -> Tensor:
    """A view of ids, whether of one text, of several, or of several at each place.  -> [any, token, ...]"""
    return field[None] if field.ndim == 1 else field


def _ordinary(field: Tensor, prepared: ModelInput) -> list[int]:
    """The places of ids that no tokenizer added."""
    tokens, length = prepared.tokens, _ids(field).shape[1]
    if len(tokens) != length:
        return list(range(length))
    return [place for place, token in enumerate(tokens) if not token.special]
