"""attnscope: see what the attention heads of a transformer do.

The public face, each name loaded when it is first used:

    load                                    a model by name
    overview, one_head, one_token           look at a text through it
    stats, survey, whole_layers             measure its heads, list its sites, keep its weights
    all_heads, export                       any picture from one pass; all of it as files
    WeightsFile                             a file of weights in a model's place
    read_corpus, corpus_stats               measure its heads over many texts
    ablate, claim                           take a head away, check what is said of heads
    compare, through_layers                 compare all heads, or one head number through the layers
    compare_heads, _texts, _models          compare two heads, two texts, two models
    recording                               watch the attention of any forward pass
    Selection, Head                         which layers, heads and kind; the address of one head
    Attention, Site, Token                  what is seen there
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "Attention": "attnscope.attention",
    "Head": "attnscope.attention",
    "Selection": "attnscope.analysis.selection",
    "Site": "attnscope.attention",
    "Token": "attnscope.attention",
    "WeightsFile": "attnscope.models.weights_file",
    "ablate": "attnscope.analysis.intervention.ablation",
    "all_heads": "attnscope.analysis.all_heads",
    "claim": "attnscope.analysis.claims",
    "compare": "attnscope.analysis.comparison.compare",
    "compare_heads": "attnscope.analysis.comparison.two_heads",
    "compare_models": "attnscope.analysis.comparison.models",
    "compare_texts": "attnscope.analysis.comparison.texts",
    "corpus_stats": "attnscope.analysis.corpus.corpus_stats",
    "export": "attnscope.render.export",
    "load": "attnscope.models",
    "one_head": "attnscope.analysis.head",
    "one_token": "attnscope.analysis.token",
    "overview": "attnscope.analysis.overview",
    "read_corpus": "attnscope.storage.corpus",
    "recording": "attnscope.capture",
    "stats": "attnscope.analysis.stats",
    "survey": "attnscope.analysis.survey",
    "through_layers": "attnscope.analysis.comparison.depth",
    "whole_layers": "attnscope.analysis.layers",
}

__all__ = ["__version__", *_WHERE]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'attnscope' has no attribute {name!r}: it has {', '.join(_WHERE)}")
    return getattr(import_module(_WHERE[name]), name)
