"""Measures: from rows of attention to scores of a head, each with its baseline.

measurement = Measurement()
with recording(model, [measurement]):
    model(**inputs)
for head in measurement.figures():
    print(head.name, head.role, head.figures["entropy"])
"""

from attnscope.figures import *
from attnscope.measures.block import *
from attnscope.measures.explain import *
from attnscope.measures.forms import *
from attnscope.measures.measurement import *  # which fills the table of measures
from attnscope.measures.roles import *
