"""Measures: from rows of attention to numbers of a head, each beside what chance would give.

measured = Measured()
with recording(model, [measured]):
    model(**inputs)
for head in measured.figures():
    print(head.name, head.role, head.figures["entropy"])
"""

# The imports of the three families fill the table of measures, in this order.
from attnscope.measures import distribution, position, tokens  # isort: skip  # noqa: F401
from attnscope.measures.block import Block, TokenFacts
from attnscope.measures.explain import explain
from attnscope.measures.figures import Figure, FixedOffset, HeadFigures, Role
from attnscope.measures.measure import MEASURES, KeySum, Measure, PerRow, measure
from attnscope.measures.measured import DEFAULT, Measured
from attnscope.measures.roles import PATTERNS, ROLES, role, worth_a_look

__all__ = [
    "DEFAULT",
    "MEASURES",
    "PATTERNS",
    "ROLES",
    "Block",
    "Figure",
    "FixedOffset",
    "HeadFigures",
    "KeySum",
    "Measure",
    "Measured",
    "PerRow",
    "Role",
    "TokenFacts",
    "explain",
    "measure",
    "role",
    "worth_a_look",
]
