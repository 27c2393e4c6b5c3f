"""Which records each command prints with ``--json``, and the JSON Schema of them."""

from __future__ import annotations

from typing import Any

from attnscope.questions.ablate import Ablation
from attnscope.questions.across import ModelComparison, TextComparison
from attnscope.questions.align import MonotoneHeads, SpokenText
from attnscope.questions.answer import name_schema
from attnscope.questions.audit import Audit
from attnscope.questions.cachecost import CacheCost
from attnscope.questions.cause import Intervention
from attnscope.questions.change import MeasureChange
from attnscope.questions.check import Checked
from attnscope.questions.circuit import FoundCircuit
from attnscope.questions.compare import Comparison, HeadComparison
from attnscope.questions.composition import Feeds
from attnscope.questions.copying import Copying
from attnscope.questions.cost import LookCost
from attnscope.questions.find import FindResult
from attnscope.questions.flow import Flow
from attnscope.questions.gold import GoldResult
from attnscope.questions.head import OneHead, SeveralHeads
from attnscope.questions.info import Survey
from attnscope.questions.lens import Lens
from attnscope.questions.logits import Writes
from attnscope.questions.manifest import Manifest
from attnscope.questions.neurons import Neurons
from attnscope.questions.overview import Overview
from attnscope.questions.spans import SpanMaps, WrittenAttention
from attnscope.questions.stats import Stats
from attnscope.questions.tracing import TokenTrace
from attnscope.questions.track import Track
from attnscope.records import Meaning, schema, shaped
from attnscope.views import TokenView
from attnscope.views.charts import Curves, Faithful

ANSWERS: dict[str, tuple[Any, ...]] = {
    "show": (Overview, OneHead, SeveralHeads, TokenView, Neurons),
    "stats": (Stats, Curves, Faithful),
    "logits": (Writes, Lens),
    "ablate": (Ablation, Stats),
    "cut": (Intervention,),
    "patch": (Intervention, TokenTrace),
    "circuit": (FoundCircuit,),
    "cachecost": (CacheCost,),
    "compare": (
        Comparison,
        HeadComparison,
        TextComparison,
        ModelComparison,
        MeasureChange,
        Feeds,
    ),
    "find": (FindResult, GoldResult),
    "spans": (SpanMaps, WrittenAttention, FindResult),
    "align": (SpokenText, MonotoneHeads),
    "flow": (Flow, Faithful),
    "info": (Survey, Audit, Copying, LookCost),
    "check": (Checked,),
    "export": (Manifest,),
    "track": (Track,),
}
"""The records that each command may print with ``--json``."""

UNWEIGHED = ("info", "flow", "align", "logits", "ablate", "cut", "patch", "circuit", "cachecost", "track")
"""The commands that never weigh what they show."""

OF_TEXT = {"where": shaped(str, Meaning("the place of the text in its corpus (--jsonl); else absent"))}

WEIGHED = {
    "weigh": shaped(str, Meaning("what the weights are weighed by (--weigh); absent where they are not")),
    "target": shaped(
        str, Meaning("the prediction that a gradient is of (--target); absent where none was named")
    ),
}


def schema_of(command: str) -> dict[str, Any]:
    """The schema of what a command prints with ``--json``."""
    name = name_schema(command)
    first = {"schema": {"const": name, "description": "the name of this schema, and its version behind it"}}
    more = ({} if command in UNWEIGHED else WEIGHED) | (OF_TEXT if command == "stats" else {})
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
