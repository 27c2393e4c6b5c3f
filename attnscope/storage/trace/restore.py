"""Dataclasses from JSON that somebody else wrote: every field is there, no other, each of its own type."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 1 << 40
"""No number in a description is larger."""


def restore(kind: Any, value: Any, where: str = "it") -> Any:
    """A value of JSON as the type that is meant. Raises ``ValueError`` that says where it is none."""
    origin, inside, made = _parts(kind)
    if made:
        return _restore_fields(kind, value, where)
    if origin in (Union, types.UnionType):
        return _restore_one_of(inside, value, where)
    if origin is Literal and isinstance(value, str) and value in inside:
        return value
    if origin is tuple and isinstance(value, list) and (inside[-1] is ... or len(value) == len(inside)):
        kinds = [inside[0]] * len(value) if inside[-1] is ... else inside
        return tuple(restore(one, each, where) for one, each in zip(kinds, value, strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {name: restore(inside[1], each, f"{where}.{name:.40}") for name, each in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind is int and type(value) is int and abs(value) <= LARGEST:
        return value
    if kind in (str, bool, type(None)) and type(value) is kind:
        return value
    raise ValueError(f"{where} is {str(value)[:60]!r}, which it cannot be")


def _restore_one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """The type of a union that a value fits; of several objects the one with its ``form``, or its fields."""
    for kind in kinds:
        origin, _, made = _parts(kind)
        if made:
            if isinstance(value, dict) and _fits(kind, value):
                return restore(kind, value, where)
        elif kind is type(None):
            if value is None:
                return None
        elif (origin is tuple) == isinstance(value, list) and not isinstance(value, dict):
            try:
                return restore(kind, value, where)
            except ValueError:
                if isinstance(value, list):
                    raise
    raise ValueError(f"{where} is {str(value)[:60]!r}, which it cannot be")


def _fits(kind: Any, value: Mapping[str, Any]) -> bool:
    form = _hints(kind).get("form")
    return set(value) == set(_hints(kind)) if form is None else value.get("form") in get_args(form)


def _restore_fields(kind: Any, value: Any, where: str) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict) or set(value) != set(hints):
        raise ValueError(f"{where} has other fields than {', '.join(hints)}")
    return kind(**{name: restore(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})


@lru_cache(maxsize=256)
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """What a type is of, what it has inside, and whether it is a dataclass."""
    return get_origin(kind), get_args(kind), is_dataclass(kind)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
