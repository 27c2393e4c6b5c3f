"""One forward pass, and the views that are built from what was seen in it.

model = load("own")
prepared = model.prepare("The cat sat on the mat.")
everything = overview(model, prepared, Choice())
head = one_head(model, prepared, Choice(layer=0, head=2))
token = one_token(model, prepared, Choice(token="cat"))
"""

from attnscope.look.ablation import Ablation, Changed, ablated
from attnscope.look.all_heads import AllHeads, all_heads
from attnscope.look.choice import Choice
from attnscope.look.claims import Claim, Verdict, claim
from attnscope.look.compare import Comparison, Pair, compare
from attnscope.look.compare_heads import HeadComparison, compare_heads
from attnscope.look.compare_models import ModelComparison, compare_models
from attnscope.look.compare_texts import TextComparison, compare_texts
from attnscope.look.conditions import conditions
from attnscope.look.corpus import Corpus, Listed, read_corpus
from attnscope.look.corpus_stats import Progress, corpus_stats
from attnscope.look.depth import Depth, through_layers
from attnscope.look.export import Exported, export
from attnscope.look.head import OneHead, one_head
from attnscope.look.heads import Head
from attnscope.look.importance import Importance
from attnscope.look.layers import WholeLayers, whole_layers
from attnscope.look.numbers import site_numbers
from attnscope.look.overview import Overview, overview
from attnscope.look.processes import launched
from attnscope.look.snapshot import Change, changes, save_snapshot
from attnscope.look.stats import Stats, stats
from attnscope.look.survey import Sighting, Survey, survey
from attnscope.look.token import one_token

__all__ = [
    "Ablation",
    "AllHeads",
    "Change",
    "Changed",
    "Choice",
    "Claim",
    "Comparison",
    "Corpus",
    "Depth",
    "Exported",
    "Head",
    "HeadComparison",
    "Importance",
    "Listed",
    "ModelComparison",
    "OneHead",
    "Overview",
    "Pair",
    "Progress",
    "Sighting",
    "Stats",
    "Survey",
    "TextComparison",
    "Verdict",
    "WholeLayers",
    "ablated",
    "all_heads",
    "changes",
    "claim",
    "compare",
    "compare_heads",
    "compare_models",
    "compare_texts",
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
    "through_layers",
    "whole_layers",
]
