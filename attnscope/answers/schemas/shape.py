"""JSON Schema in few words: each field is a shape and a sentence on what it holds."""

from __future__ import annotations

from typing import Any, TypeAlias

Shape: TypeAlias = "dict[str, Any]"

TEXT: Shape = {"type": "string"}
COUNT: Shape = {"type": "integer", "minimum": 0}
WHOLE: Shape = {"type": "integer"}
NUMBER: Shape = {"type": ["number", "null"], "description": "null where it is no finite number"}
FLAG: Shape = {"type": "boolean"}
KIND: Shape = {"enum": ["encoder", "decoder", "cross"]}
NOTES: Shape = {"type": "array", "items": TEXT}


def described(shape: Shape, description: str) -> Shape:
    """A shape with what it holds, behind what it says already."""
    return shape | {
        "description": "; ".join([description, *([said] if (said := shape.get("description")) else [])])
    }


def record(description: str, optional: tuple[str, ...] = (), /, **fields_: tuple[Shape, str]) -> Shape:
    """An object with these fields and no other; a name may end in ``_`` where Python has the word."""
    fields = {name.rstrip("_"): described(*field) for name, field in fields_.items()}
    return {
        "type": "object",
        "description": description,
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }


def extended(shape: Shape, **fields: tuple[Shape, str]) -> Shape:
    """The same objects, which may have these fields too."""
    if "anyOf" in shape:
        return shape | {"anyOf": [extended(each, **fields) for each in shape["anyOf"]]}
    more = {name: described(*field) for name, field in fields.items()}
    return shape | {"properties": shape["properties"] | more}


def begun(shape: Shape, **fields: tuple[Shape, str]) -> Shape:
    """The same objects, which begin with these fields."""
    if "anyOf" in shape:
        return shape | {"anyOf": [begun(each, **fields) for each in shape["anyOf"]]}
    first = {name: described(*field) for name, field in fields.items()}
    return shape | {"properties": first | shape["properties"], "required": [*first, *shape["required"]]}


def listed(items: Shape, count: int | None = None) -> Shape:
    """A list of one shape, of so many entries if that is given."""
    size = {} if count is None else {"minItems": count, "maxItems": count}
    return {"type": "array", "items": items, **size}


def named(values: Shape) -> Shape:
    """An object whose names are not known beforehand."""
    return {"type": "object", "additionalProperties": values}


def either(*shapes: Shape) -> Shape:
    """One of several shapes."""
    return {"anyOf": list(shapes)}


def absent(shape: Shape) -> Shape:
    """A shape, or null."""
    return either(shape, {"type": "null"})


MATRIX = listed(listed(NUMBER))
