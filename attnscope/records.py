"""Records: a field is declared once, with its meaning; JSON, its schema, tables and strict reading follow.

    @record("a score that changed")
    class Change:
        head: Annotated[Head, Meaning("its head")]
        before: Annotated[float | None, Meaning("in the snapshot")]

        @derived("how far it moved")
        def moved(self) -> float: ...

``plain`` turns a record into data for JSON, ``schema`` gives the JSON Schema of that data, and ``read``
turns data from outside back into a record, with checks. Fields without a meaning exist only in Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache, reduce
from math import isfinite
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from attnscope.attention import Head, Kind
from attnscope.registry import dataclass_transform

Shape = dict[str, Any]
Class = TypeVar("Class", bound=type)
Value = TypeVar("Value")

NUMBER_SHAPE: Shape = {"type": ["number", "null"], "description": "null where it is not a finite number"}
BASIC_SHAPES: Mapping[Any, Shape] = {
    str: {"type": "string"},
    Head: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    float: NUMBER_SHAPE,
    type(None): {"type": "null"},
    Any: {},
}
LARGEST_INTEGER = 1 << 40  # the largest whole number that is read


@dataclass(frozen=True)
class Meaning:
    """What a field holds.

    Optionally: another ``name`` in data, left out where it is None (``optional``), a ``shape`` that its
    type does not say (NumPy arrays, signed numbers), and its own conversion to ``plain`` data.
    """

    text: str
    name: str | None = None
    optional: bool = False
    shape: Any = None
    plain: Callable[[Any], Any] | None = None


Notes = Annotated[tuple[str, ...], Meaning("what to know about the model, the text and the answer")]
"""The notes of an answer."""


class Parts:
    """A field that is replaced in data by these of its attributes, or without any by all its own fields."""

    def __init__(self, **meanings: str | Meaning) -> None:
        self.meanings = {
            name: Meaning(one) if isinstance(one, str) else one for name, one in meanings.items()
        }


MATRIX: Any = Sequence[Sequence[float]]  # the schema of a two-dimensional array

ADDRESS = Parts(
    layer="its layer", head="its number in the layer", kind=Meaning("its kind of attention", shape=Kind)
)
Address = Annotated[Head, ADDRESS]
"""A ``Head`` that is replaced in data by its numbers and its kind."""


RECORDS_BY_COMMAND: dict[str, list[Any]] = {}
"""The records that each command may print with ``--json``, from imported modules."""


@dataclass_transform(frozen_default=True)
def record(sentence: str, *commands: str, **options: Any) -> Callable[[Class], Class]:
    """A frozen dataclass described by ``sentence``, which these ``commands`` print with ``--json``."""

    def make(cls: Class) -> Class:
        kind: Any = dataclass(frozen=True, **options)(cls)
        kind.__sentence__ = sentence
        for command in commands:
            RECORDS_BY_COMMAND.setdefault(command, []).append(kind)
        return kind  # type: ignore[no-any-return]

    return make


class Derived(property):
    """A property that appears in data beside the fields."""

    meaning: Meaning


def derived(text: str, **options: Any) -> Callable[[Callable[[Any], Value]], Value]:
    """Make a method a property that appears in data beside the fields, where ``text`` says what it holds."""

    def make(method: Callable[[Any], Value]) -> Any:
        attribute = Derived(method, doc=text)
        attribute.meaning = Meaning(text, **options)
        return attribute

    return make


def shaped(kind: Any, meaning: Meaning) -> Shape:
    """The JSON Schema of a field with this type and meaning."""
    shape = schema(kind if meaning.shape is None else meaning.shape)
    return shape | {"description": "; ".join(filter(None, [meaning.text, shape.get("description")]))}


@cache
def members(kind: Any) -> tuple[tuple[tuple[str, ...], Any, Meaning], ...]:
    """The parts of a record that appear in data: path of attributes, type and meaning."""
    hints = get_type_hints(kind, include_extras=True)
    parts: list[tuple[tuple[str, ...], Any, Meaning]] = []
    for each in fields(kind):
        for note in getattr(hints[each.name], "__metadata__", ()):
            inner = get_args(hints[each.name])[0]
            if isinstance(note, Meaning):
                parts.append(((each.name,), inner, note))
            elif isinstance(note, Parts) and not note.meanings:
                parts += [((each.name, *path), kind_, meaning) for path, kind_, meaning in members(inner)]
            elif isinstance(note, Parts):
                named = note.meanings.items()
                parts += [((each.name, name), _type_of(inner, name), meaning) for name, meaning in named]
    for cls in reversed(kind.__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, Derived):
                kind_ = get_type_hints(value.fget, include_extras=True)["return"]
                parts.append(((name,), kind_, value.meaning))
    return tuple(parts)


def _type_of(kind: Any, name: str) -> Any:
    """The type of an attribute: of a field, or the return type of a property."""
    value = getattr(kind, name, None)
    return get_type_hints(value.fget)["return"] if isinstance(value, property) else get_type_hints(kind)[name]


def schema(kind: Any) -> Shape:
    """The JSON Schema of what ``plain`` makes of a value of this type; a schema is returned as it is."""
    if isinstance(kind, dict):
        return kind
    if kind in BASIC_SHAPES:
        return dict(BASIC_SHAPES[kind])
    if (origin := get_origin(kind)) is not None:
        return SCHEMAS[origin](*get_args(kind))
    parts = {meaning.name or path[-1]: (inner, meaning) for path, inner, meaning in members(kind)}
    return {
        "type": "object",
        "description": kind.__sentence__,
        "properties": {name: shaped(*part) for name, part in parts.items()},
        "required": [name for name, (_, meaning) in parts.items() if not meaning.optional],
        "additionalProperties": False,
    }


def _annotated(kind: Any, note: Any, *_: Any) -> Shape:
    return shaped(kind, note) if isinstance(note, Meaning) else schema(kind)


def _union(*kinds: Any) -> Shape:
    return {"anyOf": [schema(each) for each in kinds]}


def _array(kind: Any) -> Shape:
    return {"type": "array", "items": schema(kind)}


def _tuple(*kinds: Any) -> Shape:
    """As many items as there are types, or any number of the type before an ellipsis."""
    if kinds[-1] is ...:
        return _array(kinds[0])
    if len(set(kinds)) == 1:
        return _array(kinds[0]) | {"minItems": len(kinds), "maxItems": len(kinds)}
    return {"type": "array", "prefixItems": [schema(each) for each in kinds], "items": False}


SCHEMAS: Mapping[Any, Callable[..., Shape]] = {
    Annotated: _annotated,
    Literal: lambda *values: {"enum": list(values)},
    **dict.fromkeys((Union, types.UnionType), _union),
    **dict.fromkeys((Mapping, dict), lambda _, one: {"type": "object", "additionalProperties": schema(one)}),
    **dict.fromkeys((Sequence, list), _array),
    tuple: _tuple,
}
"""The schema of a generic type from its arguments."""


def plain(value: Any) -> Any:
    """A value as data for JSON: records and mappings as objects, sequences and arrays as lists.

    Floats have nine digits, as many as float32: what is read back to the last bit is written otherwise.
    NaN and infinity are ``null``.
    """
    if isinstance(value, Head):
        return value.name
    kind: Any = type(value)
    if hasattr(kind, "__sentence__"):
        data = {}
        for path, _, meaning in members(kind):
            part = reduce(getattr, path, value)
            if not (meaning.optional and part is None):
                data[meaning.name or path[-1]] = plain(meaning.plain(part) if meaning.plain else part)
        return data
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if isfinite(value) else None
    return plain(value.tolist()) if hasattr(value, "tolist") else value


def read(kind: Any, value: Any, where: str = "it") -> Any:
    """JSON data as this type, with all its fields and no other. Raises ``ValueError`` with the place."""
    origin, inside, is_record = _parts(kind)
    if origin is Annotated:
        return read(inside[0], value, where)
    if is_record:
        hints = _hints(kind)
        if not isinstance(value, dict) or set(value) != set(hints):
            raise ValueError(f"{where} has other fields than {', '.join(hints)}")
        return kind(**{name: read(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
    if origin in (Union, types.UnionType):
        return _read_one_of(inside, value, where)
    if origin is tuple and isinstance(value, list) and (inside[-1] is ... or len(value) == len(inside)):
        kinds = [inside[0]] * len(value) if inside[-1] is ... else inside
        return tuple(read(one, each, where) for one, each in zip(kinds, value, strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {name: read(inside[1], each, f"{where}.{name:.40}") for name, each in value.items()}
    if not _is_basic(kind, value):
        raise ValueError(f"{where} is {str(value)[:60]!r}, which it must not be")
    return float(value) if kind is float else value


def _is_basic(kind: Any, value: Any) -> bool:
    """Whether a value is a number, text, truth value or null of this type, or one of its literal texts."""
    origin, inside, _ = _parts(kind)
    if origin is Literal:
        return isinstance(value, str) and value in inside
    if kind is float:
        return type(value) in (int, float)
    whole = kind is not int or (type(value) is int and abs(value) <= LARGEST_INTEGER)
    return whole and kind in (str, bool, int, type(None)) and type(value) is kind


def _read_one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """The type of a union that a value fits; among several objects, by their ``form`` or their fields."""
    for kind in kinds:
        origin, _, is_record = _parts(kind)
        if is_record and isinstance(value, dict):
            form = _hints(kind).get("form")
            if set(value) == set(_hints(kind)) if form is None else value.get("form") in get_args(form):
                return read(kind, value, where)
        elif is_record:
            continue
        elif kind is type(None):
            if value is None:
                return None
        elif (origin is tuple) == isinstance(value, list) and not isinstance(value, dict):
            try:
                return read(kind, value, where)
            except ValueError:
                if isinstance(value, list):
                    raise
    raise ValueError(f"{where} is {str(value)[:60]!r}, which it must not be")


@lru_cache(maxsize=256)
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """A type's origin, its arguments, and whether it is a dataclass."""
    return get_origin(kind), get_args(kind), is_dataclass(kind)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
