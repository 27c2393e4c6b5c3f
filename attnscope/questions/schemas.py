"""Which records each command prints with ``--json``, and the JSON Schema of them."""

from __future__ import annotations

from typing import Any, TypeAlias

from attnscope.capture import SiteRecord
from attnscope.questions.ablate import Ablation
from attnscope.questions.across import ModelComparison, TextComparison
from attnscope.questions.align import MonotoneHeads, SpokenText
from attnscope.questions.answer import name_schema
from attnscope.questions.audit import Audit
from attnscope.questions.check import Checked
from attnscope.questions.compare import Comparison, HeadComparison
from attnscope.questions.composition import Feeds
from attnscope.questions.depth import DepthComparison
from attnscope.questions.find import FindResult
from attnscope.questions.flow import Flow
from attnscope.questions.gold import GoldResult
from attnscope.questions.head import OneHead
from attnscope.questions.info import Survey
from attnscope.questions.logits import Writes
from attnscope.questions.overview import Overview
from attnscope.questions.spans import SpanMaps, WrittenAttention
from attnscope.questions.stats import Stats
from attnscope.records import Meaning, schema, shaped
from attnscope.views import TokenView
from attnscope.views.charts import Curves, Faithful

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


NOTED = (NOTES, "what to know about the model, the text and the answer")
AXIS: tuple[Shape, str] = (absent(COUNT), "its place in texts; null where the axis is no text")
EXPORT = record(
    "the manifest of an export",
    attnscope=(TEXT, "the release that wrote it"),
    command=(absent(TEXT), "what was typed"),
    model=(
        record(
            "the model",
            name=(TEXT, "as it was named"),
            class_=(TEXT, "its Python class"),
            revision=(absent(TEXT), "its commit on the hub"),
            parameters=(COUNT, "its weights"),
            device=(TEXT, "where it ran"),
        ),
        "the model",
    ),
    versions=(named(TEXT), "of what the bytes may depend on"),
    texts=(
        listed(record("a text", tokens=(listed(TEXT), "its tokens"), ids=(listed(WHOLE), "their numbers"))),
        "the texts on the axes",
    ),
    kinds=(named(record("the axes of a kind", queries=AXIS, keys=AXIS)), "by kind of attention"),
    sites=(listed(schema(SiteRecord)), "every attention call"),
    notes=NOTED,
    warnings=(NOTES, "what to know about the pictures"),
    files=(
        listed(
            record(
                "a file",
                ("kind", "layer", "head"),
                name=(TEXT, "its name"),
                bytes=(COUNT, "its size"),
                sha256=(TEXT, "its checksum"),
                kind=(KIND, "where a model has several"),
                layer=(COUNT, "the layer that it shows"),
                head=(COUNT, "the head that it shows"),
            )
        ),
        "every file",
    ),
)


ANSWERS: dict[str, tuple[Any, ...]] = {
    "show": (Overview, OneHead, TokenView, Ablation, Writes),
    "stats": (Stats, Curves, Faithful),
    "compare": (
        Comparison,
        DepthComparison,
        HeadComparison,
        TextComparison,
        ModelComparison,
        Feeds,
    ),
    "find": (FindResult, GoldResult),
    "spans": (SpanMaps, WrittenAttention, FindResult),
    "align": (SpokenText, MonotoneHeads),
    "flow": (Flow, Faithful),
    "info": (Survey, Audit),
    "check": (Checked,),
    "export": (EXPORT,),
}
"""The records that each command may print with ``--json``; a shape stands where there is no record yet."""

UNWEIGHED = ("info", "flow", "align")
"""The commands that never weigh what they show."""

WEIGHED = {
    "weigh": shaped(str, Meaning("what the weights are weighed by (--weigh); absent where they are not")),
    "target": shaped(
        str, Meaning("the prediction that a gradient is of (--target); absent where none was named")
    ),
}


def schema_of(command: str) -> Shape:
    """The schema of what a command prints with ``--json``."""
    name = name_schema(command)
    first = {"schema": {"const": name, "description": "the name of this schema, and its version behind it"}}
    more = {} if command in UNWEIGHED else WEIGHED
    shapes = [
        shape | {"properties": first | shape["properties"] | more, "required": ["schema", *shape["required"]]}
        for shape in map(schema, ANSWERS[command])
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        "title": f"attnscope {command} --json",
        **(shapes[0] if len(shapes) == 1 else {"anyOf": shapes}),
    }
