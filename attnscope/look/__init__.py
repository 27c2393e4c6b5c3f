"""One forward pass, and the views that are built from what was seen in it.

model = load("own")
prepared = model.prepare("The cat sat on the mat.")
everything = overview(model, prepared, Choice())
head = one_head(model, prepared, Choice(layer=0, head=2))
token = one_token(model, prepared, Choice(token="cat"))
"""

from attnscope.look.all_heads import AllHeads, all_heads
from attnscope.look.choice import Choice
from attnscope.look.claims import Claim, Verdict, claim
from attnscope.look.conditions import conditions
from attnscope.look.corpus import Corpus, Listed, read_corpus
from attnscope.look.corpus_stats import Progress, corpus_stats
from attnscope.look.export import Exported, export
from attnscope.look.head import OneHead, one_head
from attnscope.look.layers import WholeLayers, whole_layers
from attnscope.look.numbers import site_numbers
from attnscope.look.overview import Overview, overview
from attnscope.look.processes import launched
from attnscope.look.snapshot import Change, changes, save_snapshot
from attnscope.look.stats import Stats, stats
from attnscope.look.survey import Sighting, Survey, survey
from attnscope.look.token import one_token

__all__ = [
    "AllHeads",
    "Change",
    "Choice",
    "Claim",
    "Corpus",
    "Exported",
    "Listed",
    "OneHead",
    "Overview",
    "Progress",
    "Sighting",
    "Stats",
    "Survey",
    "Verdict",
    "WholeLayers",
    "all_heads",
    "changes",
    "claim",
    "conditions",
    "corpus_stats",
    "export",
    "launched",
    "one_head",
    "one_token",
    "overview",
    "read_corpus",
    "save_snapshot",
    "site_numbers",
    "stats",
    "survey",
    "whole_layers",
]
