"""Measures: from rows of attention to scores of a head, each with its baseline.

measurement = Measurement()
with recording(model, [measurement]):
    model(**inputs)
for head in measurement.scores():
    print(head.name, head.role, head.scores["entropy"])
"""

from attnscope.measures.block import *
from attnscope.measures.explain import *
from attnscope.measures.forms import *
from attnscope.measures.measurement import *  # which fills the table of measures
from attnscope.measures.roles import *
from attnscope.scores import *
