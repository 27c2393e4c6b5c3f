"""Which records each command prints with ``--json``, and the JSON Schema of them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import attnscope.questions
from attnscope.questions.answer import name_schema
from attnscope.records import PRINTED, Meaning, schema, shaped

for module in iter_modules(attnscope.questions.__path__):
    import_module(f"attnscope.questions.{module.name}")

ANSWERS = dict(sorted(PRINTED.items()))  # the records that each command may print with ``--json``

UNWEIGHED = ("info", "flow", "align", "logits", "ablate", "cut", "patch", "circuit", "cachecost", "track")
"""The commands that never show weighed attention."""

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
