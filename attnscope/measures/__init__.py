"""Measures: from rows of attention to figures of a head, each with its baseline.

measurement = Measurement()
with recording(model, [measurement]):
    model(**inputs)
for head in measurement.figures():
    print(head.name, head.role, head.figures["entropy"])
"""

# Importing the three families fills the table of measures, in this order.
from attnscope.figures import Figure, HeadFigures, Role
from attnscope.measures.block import Block, TokenFacts
from attnscope.measures.explain import explain
from attnscope.measures.forms import MEASURES, Measure, fused_request, measure
from attnscope.measures.measurement import DEFAULT, Measurement
from attnscope.measures.roles import PATTERNS, ROLES, role, settle_roles, worth_a_look

__all__ = [
    "DEFAULT",
    "MEASURES",
    "PATTERNS",
    "ROLES",
    "Block",
    "Figure",
    "HeadFigures",
    "Measure",
    "Measurement",
    "Role",
    "TokenFacts",
    "explain",
    "fused_request",
    "measure",
    "role",
    "settle_roles",
    "worth_a_look",
]
