"""What every command prints with ``--json``, as JSON Schema: for programs, and for agents."""

from attnscope.answers.schemas.align import ALIGN
from attnscope.answers.schemas.flow import FAITHFUL, FLOW
from attnscope.answers.schemas.gold import GOLD
from attnscope.answers.schemas.looks import FIND, INFO, SHOW
from attnscope.answers.schemas.measured import STATS
from attnscope.answers.schemas.others import CHECK, COMPARE, EXPORT
from attnscope.answers.schemas.parts import SPANS
from attnscope.answers.schemas.shape import TEXT, Shape, begun, either, extended
from attnscope.answers.version import name_schema

__all__ = ["schema_of"]

SCHEMAS = {
    "show": SHOW,
    "stats": either(STATS, FAITHFUL),
    "compare": COMPARE,
    "find": either(FIND, GOLD),
    "spans": either(*SPANS["anyOf"], FIND),
    "align": ALIGN,
    "flow": either(FLOW, FAITHFUL),
    "info": INFO,
    "check": CHECK,
    "export": EXPORT,
}
WEIGH = (TEXT, "what the weights are weighed by (--weigh); absent where they are not")
TARGET = (TEXT, "the prediction that a gradient is of (--target); absent where none was named")
UNWEIGHED = ("info", "flow", "align")
SCHEMAS |= {
    name: extended(schema, weigh=WEIGH, target=TARGET)
    for name, schema in SCHEMAS.items()
    if name not in UNWEIGHED
}


def schema_of(command: str) -> Shape:
    """The schema of what a command prints with ``--json``."""
    name = name_schema(command)
    schema = ({"const": name}, "the name of this schema, and its version behind it")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        "title": f"attnscope {command} --json",
        **begun(SCHEMAS[command], schema=schema),
    }
