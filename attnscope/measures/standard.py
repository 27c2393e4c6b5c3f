"""The measures: how wide a row is, and to which positions and tokens it attends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.fused.request import Pairs
from attnscope.lazy import torch
from attnscope.measures import forms
from attnscope.measures.block import Block, TokenFacts, finest, number_of
from attnscope.measures.forms import MEASURES, Measure, measure

if TYPE_CHECKING:
    from torch import Tensor


CLARK = "Clark et al. 2019, What Does BERT Look At?"
VOITA = "Voita et al. 2019, Analyzing Multi-Head Self-Attention"
VIG = "Vig & Belinkov 2019, Analyzing the Structure of Attention"
SINKS = "attention sinks: Xiao et al. 2023; Gu et al. 2024"
OFF_KEYS = "sink logits: gpt-oss; softmax plus one: Miller 2023, Attention Is Off By One"
MEAN_DISTANCE = "mean attention distance: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words"

COVERED_SHARE = 0.9  # the share of a row that ``coverage90`` counts up to
NO_TOKEN = -(1 << 63)  # the label of a key that follows no token; not a valid id


@measure("entropy", forms.OfRow, unit="nats", bounds="0 to log n", formula="-Σ_j A log A", source=CLARK)
def entropy(row: forms.Row) -> Tensor:
    """Shannon entropy of the row.  -> [batch, head, row]"""
    return row.entropy


@measure("normalized_entropy", forms.OfRow, formula="entropy / log n_i", source=CLARK)
def normalized_entropy(row: forms.Row) -> Tensor:
    """Entropy as a share of the most that the unmasked keys allow.  -> [batch, head, row]"""
    return row.entropy / row.open_keys.clamp_min(2).log()


@measure(
    "effective_keys",
    forms.OfRow,
    unit="keys",
    bounds="1 to n",
    formula="exp(entropy)",
    source="perplexity of the row",
)
def effective_keys(row: forms.Row) -> Tensor:
    """Effective number of keys.  -> [batch, head, row]"""
    return row.entropy.exp()


@measure("confidence", forms.OfRow, formula="max_j A", source=VOITA)
def confidence(row: forms.Row) -> Tensor:
    """Largest weight of the row.  -> [batch, head, row]"""
    return row.largest


@measure(
    "coverage90",
    forms.OfWeights,
    unit="keys",
    bounds="1 to n",
    formula="fewest keys whose weights reach 0.9 Σ_j A",
    source="sparsity of the row",
)
def coverage90(block: Block) -> Tensor:
    """Fewest keys that hold nine tenths of the row; sorts every row, so it is measured only on request.

    [batch, head, row, key] -> [batch, head, row]. Sums are float64 where the device has it; a shortfall
    of a millionth of the row counts as rounding.
    """
    rows = block.rows.to(finest(block.rows.device))
    cumulative = rows.sort(-1, descending=True).values.cumsum(-1)  # [batch, head, row, key]
    short = cumulative < (COVERED_SHARE - forms.ROUNDING_SHARE) * cumulative[..., -1:]
    return (short.sum(-1) + 1).to(block.rows.dtype)


@measure(
    "monotonic",
    forms.OfTwoRows,
    formula="share of rows whose largest key is at or after that of the row before",
    source="monotonic alignment: Raffel et al. 2017, Online and Linear-Time Attention",
)
def monotonic(rows: Tensor, before: Tensor) -> Tensor:
    """Whether the row's largest key is at or after that of the row before; only on request.

    [batch, head, row, key] twice -> [batch, head, row]. Equally large keys share the count, so that even
    attention scores (n + 1) / 2n, like a key drawn at random in each row.
    """
    here, there = (each == each.amax(-1, keepdim=True) for each in (rows, before))
    share = there.cumsum(-1, dtype=rows.dtype) / there.sum(-1, keepdim=True)
    return (here * share).sum(-1) / here.sum(-1)


@measure("no_key", forms.OfEveryRow, formula="1 - Σ_j A", source=OFF_KEYS)
def no_key(row: forms.Row) -> Tensor:
    """Weight that no key of the row holds, such as that of a sink logit.  -> [batch, head, row]"""
    return 1 - row.total


@measure(
    "max_logit",
    forms.OfScores,
    unit="logits",
    bounds="any number",
    formula="max_ij scale·q_i·k_j, with soft cap and position bias",
    source="QK-Clip: Kimi Team 2025, Kimi K2; Dehghani et al. 2023, Scaling ViTs to 22 Billion Parameters",
)
def max_logit(row: forms.Row) -> Tensor:
    """Largest score before the softmax, of any unmasked key of any row.  -> [batch, head, row]"""
    assert row.top is not None
    return row.top


STREAMING = "Xiao et al. 2024, DuoAttention (streaming heads); Xiao et al. 2023, StreamingLLM"

TWO_AWAY = ("offset=-2", "offset=2")
"""Distances measured beside `previous` and `next`: a head that looks two back is not a `previous` head."""


@measure("distance", forms.ByGap, unit="tokens", bounds="0 to N - 1", formula="Σ_j A |i - j|", source=VIG)
def distance(gap: Tensor) -> Tensor:
    """Mean distance between a query and the keys it attends to.  -> [batch, head, row]"""
    return gap.abs()


@measure(
    "offset",
    forms.ByGap,
    unit="tokens",
    bounds="-(N - 1) to N - 1",
    formula="Σ_j A (j - i), negative: earlier keys",
    source=VIG,
)
def offset(gap: Tensor) -> Tensor:
    """Mean signed distance from a query to the keys it attends to.  -> [batch, head, row]"""
    return gap


@measure(
    "distance2d",
    forms.OnPatches,
    unit="patches",
    bounds="0 to the diagonal",
    source=MEAN_DISTANCE,
    formula="Σ A |p_i - p_j| / Σ A over patches j of the picture of i; [CLS] is left out",
)
def distance2d(rows: Tensor, keys: Tensor) -> Tensor:
    """Mean distance of the patches a patch attends to, over rows and columns.  -> [batch, head, row]"""
    return (rows - keys).to(finest(rows.device)).square().sum(-1).sqrt()


@MEASURES.register_family("distance2d=P", r"distance2d=(\d{1,4})")
def distance_in_pixels(name: str, side: str) -> Measure:
    """The same in pixels, of patches ``P`` pixels wide and high: ``distance2d=16``."""

    def pixels(rows: Tensor, keys: Tensor) -> Tensor:
        return int(side) * distance2d(rows, keys)

    pixels.__doc__ = f"Mean distance of the patches a patch attends to, of {side} pixels each"
    formula = f"{side} Σ A |p_i - p_j| / Σ A over patches j of the picture of i; [CLS] is left out"
    return Measure(name, forms.OnPatches(pixels), formula, MEAN_DISTANCE, "pixels", "0 to the diagonal")


@measure("self", forms.AtKey, formula="A[i, i]", rows="rows whose own key exists", source=CLARK)
def self_(position: Tensor) -> Tensor:
    """Weight on the query's own token.  -> [batch, head, row]"""
    return position


@measure("previous", forms.AtKey, formula="A[i, i-1]", rows="rows after the first", source=CLARK)
def previous(position: Tensor) -> Tensor:
    """Weight on the token before the query.  -> [batch, head, row]"""
    return position - 1


@measure("next", forms.AtKey, formula="A[i, i+1]", rows="rows before the last key", source=CLARK)
def next_(position: Tensor) -> Tensor:
    """Weight on the token after the query.  -> [batch, head, row]"""
    return position + 1


@measure("first", forms.AtKey, formula="A[i, 0]", rows="rows after the first", source=SINKS)
def first(position: Tensor) -> Tensor:
    """Weight on the first token, where most attention sinks are.  -> [batch, head, row]"""
    return torch.where(position > 0, 0, -1)


@measure(
    "sink_rate",
    forms.IsPeak,
    formula=f"share of rows with A[i, 0] = max_j A > {forms.LEAST_PEAK}",
    rows="rows after the first",
    source="attention sinks: Gu et al. 2024, When Attention Sink Emerges in Language Models",
)
def sink_rate(position: Tensor) -> Tensor:
    """Share of rows whose largest weight is on the first token and above 0.3.  -> [batch, head, row]"""
    return first(position)


@MEASURES.register_family("window=S+R", r"window=(\d{1,4})\+([1-9]\d{0,6})")
def in_window(name: str, sink: str, recent: str) -> Measure:
    """The weight that a cache of the first S tokens and the last R would keep: ``window=4+256``."""

    def window() -> tuple[int, int]:
        return int(sink), int(recent)

    window.__doc__ = f"Weight on the first {int(sink):,} tokens and the last {int(recent):,}"
    formula = f"Σ A[i, j] over j < {int(sink)} and |i - j| < {int(recent)}"
    return Measure(name, forms.InWindow(window), formula, STREAMING)


@MEASURES.register_family("offset=K", r"offset=([+-]?\d{1,7})")
def at_offset(name: str, step: str) -> Measure:
    """The weight on the token so many places from the query: ``offset=-2`` is two back."""
    many = abs(int(step))
    distance = f"{many:,} token{'s' * (many > 1)} {'back' if int(step) < 0 else 'ahead'}"

    def key(position: Tensor) -> Tensor:
        return torch.where(position + int(step) >= 0, position + int(step), -1)

    key.__doc__ = f"Weight on what stands {distance}  -> [batch, head, row]"
    formula = f"A[i, i{int(step):+d}]"
    return Measure(name, forms.AtKey(key), formula, VOITA, counted="rows for which that key exists")


@measure("special", forms.OnKeys, formula="Σ A[i, j] over special tokens j", source=CLARK)
def special(keys: TokenFacts) -> Tensor:
    """Weight on the tokenizer's special tokens.  -> [batch, head, row]"""
    return keys.special


@measure(
    "punctuation",
    forms.OnKeys,
    formula="Σ A[i, j] over tokens j that hold nothing but punctuation",
    source=CLARK,
)
def punctuation(keys: TokenFacts) -> Tensor:
    """Weight on tokens that hold nothing but punctuation.  -> [batch, head, row]"""
    return keys.punctuation


@MEASURES.register_family("[NAME]", r"(\[[^\[\]\s]{1,40}\]|<[^<>\s]{1,40}>)")
def on_special(name: str, token: str) -> Measure:
    """The weight on one special token by its name: ``[CLS]``, ``</s>``."""

    def keys_with_it(keys: TokenFacts) -> Tensor:
        return keys.names == number_of(token)

    keys_with_it.__doc__ = f"Weight on the special token {token}  -> [batch, head, row]"
    return Measure(name, forms.OnTokens(keys_with_it), f"Σ A[i, j] over the tokens j that are {token}", CLARK)


@measure(
    "duplicate",
    forms.OnPairs,
    formula="Σ A[i, j] over unmasked keys j ≠ i with the token id of i",
    source="TransformerLens, head detector (duplicate token heads)",
)
def duplicate(queries: TokenFacts, keys: TokenFacts) -> Pairs:
    """Weight on other occurrences of the query's own token.  -> [batch, head, row]"""
    return Pairs(queries.ids, keys.ids, itself=False)


@measure(
    "induction",
    forms.OnPairs,
    formula="Σ A[i, j+1] over unmasked keys j+1 where token j < i equals token i",
    source="Olsson et al. 2022, In-context Learning and Induction Heads (prefix matching)",
)
def induction(queries: TokenFacts, keys: TokenFacts) -> Pairs:
    """Weight on the tokens that followed earlier occurrences of the query's token.  -> [batch, head, row]"""
    before = torch.nn.functional.pad(keys.ids[:, :-1], (1, 0), value=NO_TOKEN)
    return Pairs(queries.ids, before, ahead=False)


@measure(
    "retrieval",
    forms.OfNextToken,
    formula="share of rows whose largest key j <= i holds the token that comes next, i+1",
    source="Wu et al. 2024, Retrieval Head Mechanistically Explains Long-Context Factuality (copy-paste)",
)
def retrieval(rows: Tensor, match: Tensor) -> Tensor:
    """Share of rows that attend most to a copy of the next token; only on request.

    [batch, head, row, key] -> [batch, head, row]. Keys that are equally large share the row.
    """
    largest = rows == rows.amax(-1, keepdim=True)
    return (largest & match).sum(-1).to(rows.dtype) / largest.sum(-1)


@measure(
    "segment",
    forms.OnOthers,
    formula="Σ A[i, j] over unmasked keys j of the other segment",
    source="text pairs: Devlin et al. 2019, BERT",
)
def segment(queries: TokenFacts, keys: TokenFacts) -> Pairs:
    """Weight on the other segment of a text pair.  -> [batch, head, row]"""
    return Pairs(queries.segment, keys.segment)
