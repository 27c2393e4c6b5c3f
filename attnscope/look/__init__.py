"""One forward pass, and the views that are built from what was seen in it.

model = load("own")
prepared = model.prepare("The cat sat on the mat.")
everything = overview(model, prepared, Choice())
head = one_head(model, prepared, Choice(layer=0, head=2))
token = one_token(model, prepared, Choice(token="cat"))
"""

from attnscope.look.choice import Choice
from attnscope.look.head import OneHead, one_head
from attnscope.look.layers import WholeLayers, whole_layers
from attnscope.look.overview import Overview, overview
from attnscope.look.stats import Stats, conditions, stats
from attnscope.look.survey import Sighting, Survey, survey
from attnscope.look.token import one_token

__all__ = [
    "Choice",
    "OneHead",
    "Overview",
    "Sighting",
    "Stats",
    "Survey",
    "WholeLayers",
    "conditions",
    "one_head",
    "one_token",
    "overview",
    "stats",
    "survey",
    "whole_layers",
]
