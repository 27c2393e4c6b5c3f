"""What the weights alone tell of heads: which head feeds which (composition), and which heads copy.

Elhage et al. 2021, A Mathematical Framework for Transformer Circuits; the formulas of composition are in
``measures/README.md``, with states as rows, ``W_OV = W_V W_O``, ``W_QK = W_Q W_Kᵀ``, and Frobenius norms.

A head that attends to a token adds the token's row of ``W_E W_V W_O W_U`` to the logits. It copies if the
token's own logit rises most, and if the eigenvalues of that matrix, as many as the head size, are positive.
Norms on the way are folded in: weights and centring; division by the standard deviation, a positive factor,
changes nothing.

One pass shows which weights belong to what, by their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Head, Site
from attnscope.capture import recording
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.projections import (
    ALIKE,
    Circuits,
    Norm,
    find_norm,
    first_tensor,
    orientations,
    weight_of,
)
from attnscope.errors import ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.targets import place_prediction, score_prediction
from attnscope.models.trace_model import TracedModel
from attnscope.progress import report
from attnscope.questions.answer import Answer, format_table
from attnscope.questions.sentences import group_by
from attnscope.records import ADDRESS, Address, Meaning, Notes, plain, record
from attnscope.views import Table, View, head_map, layer_rows, plain_limits

DRAWS = 32  # the baseline is the mean over this many random matrices


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The projections of the heads of one layer, each ``[head, width, size]``; ``output`` is transposed."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor
    output: Tensor


def compose(earlier: LayerWeights, later: LayerWeights) -> dict[str, Tensor]:
    """Q-, K- and V-composition of all heads of two layers.  -> [later head, earlier head]"""
    ways = {"V": (later.value, later.output)}
    if later.query is not None and later.key is not None:
        ways = {"Q": (later.query, later.key), "K": (later.key, later.query)} | ways
    wrote = _gram(earlier.value)
    length = _length(earlier.value, earlier.output)  # [earlier head]
    scores = {}
    for way, (reads, rest) in ways.items():
        between = torch.einsum("ewo,lwr->leor", earlier.output.double(), reads.double())
        square = torch.einsum("eab,leax,lxy,leby->le", wrote, between, _gram(rest), between)
        scores[way] = square.clamp(min=0).sqrt() / (_length(reads, rest)[:, None] * length)
    return scores


def compose_random(earlier: LayerWeights, later: LayerWeights) -> tuple[float, float]:
    """The mean score of random matrices of the same shapes, and its deviation; reproducible."""
    generator = torch.Generator().manual_seed(0)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(DRAWS, *like.shape[1:], generator=generator, dtype=torch.float64)

    random = [LayerWeights(None, None, draw(each.value), draw(each.output)) for each in (earlier, later)]
    scores = compose(*random)["V"]
    return float(scores.mean()), float(scores.std())


def _gram(parts: Tensor) -> Tensor:
    """[head, width, size] -> [head, size, size]"""
    return parts.double().mT @ parts.double()


def _length(left: Tensor, right: Tensor) -> Tensor:
    """The Frobenius norm of left times right transposed.  [head, width, size] twice -> [head]"""
    return (_gram(left) * _gram(right)).sum((-2, -1)).clamp(min=0).sqrt()


WAYS = {"Q": "queries", "K": "keys", "V": "values"}
"""What the later head computes from the earlier head's output."""


@record("a head")
class HeadAddress:
    """A head as an object."""

    head: Annotated[Head, ADDRESS]


def _addressed(text: str) -> Meaning:
    """The meaning of a head that is written as an object."""
    return Meaning(text, shape=HeadAddress, plain=lambda head: plain(HeadAddress(head)))


@record("one way of a pair of heads")
class Composition:
    """One composition between two heads, beside the scores of random matrices: mean and deviation."""

    head: Annotated[Head, _addressed("the earlier head")]
    fed: Annotated[Head, _addressed("the later head")]
    way: Annotated[str, Meaning("what of the later head is made of it", shape=Literal["Q", "K", "V"])]
    score: Annotated[float, Meaning("how much of what one writes is what the other reads")]
    baseline: Annotated[float, Meaning("the score of random matrices of the same shapes")]
    scatter: Annotated[float, Meaning("the standard deviation of their scores")]

    @property
    def lift(self) -> float:
        """The score minus its baseline."""
        return self.score - self.baseline


@record("how much later heads read of earlier ones (--composition)", "compare", eq=False)
class Compositions:
    """The compositions of pairs of heads, the largest lift first; ``fed`` is the one later head asked for."""

    feeds: Annotated[
        tuple[Composition, ...], Meaning("every way of every pair, the one farthest above its baseline first")
    ]
    title: Annotated[str, Meaning("the model")]
    notes: Annotated[tuple[str, ...], Meaning("what to know")]
    fed: Head | None = None

    def by(self, way: str) -> Mapping[int, list[float]]:
        """The lift of each earlier head's score for that head, by layer."""
        feeds = (each for each in self.feeds if (each.way, each.fed) == (way, self.fed))
        return layer_rows({each.head: each.lift for each in feeds})


def measure_composition(model: Model, prepared: ModelInput, fed: Head | None = None) -> Compositions:
    """Run the model once, to see which weights belong to what, and compose them, for one later head or all.

    The text does not matter. Heads of cross-attention, which read two sequences, are left out.
    """
    if isinstance(model, TracedModel):
        raise ModelError(f"{model.name} is {model.what} and holds no weights of a model: give the model")
    circuits = Circuits()
    with circuits.watching(model.module):
        record = model.run(prepared, [circuits])
    layers = {site: each for site in circuits.sites if (each := _layer_weights(circuits, site)) is not None}
    fed = None if fed is None else _require(fed, layers)
    scores, baselines = list[Composition](), dict[tuple[torch.Size, ...], tuple[float, float]]()
    for earlier, later in _composable(layers, fed):
        wrote, reads = layers[earlier], layers[later]
        shapes = wrote.value.shape[1:], wrote.output.shape[1:], reads.value.shape[1:]
        if shapes not in baselines:
            baselines[shapes] = compose_random(wrote, reads)
        for way, table in compose(wrote, reads).items():  # [later head, earlier head]
            for (reader, writer), score in np.ndenumerate(table.numpy()):
                heads = Head(earlier.layer, writer, earlier.kind), Head(later.layer, reader, later.kind)
                if fed in (None, heads[1]):
                    scores.append(Composition(*heads, way, float(score), *baselines[shapes]))
    scores.sort(key=lambda each: -each.lift)
    notes = (*model.notes, *record.notes, *_note_layers(circuits, layers))
    return Compositions(tuple(scores), f"{model.title} · from the weights", notes, fed)


def _composable(layers: Mapping[Site, LayerWeights], fed: Head | None) -> Iterator[tuple[Site, Site]]:
    """Every earlier and later layer of one residual stream; the later one is that of ``fed``, if given."""
    for later, earlier in product(layers, layers):
        read = fed is None or (later.layer, later.kind) == (fed.layer, fed.kind)
        width, read_width = layers[earlier].output.shape[1], layers[later].value.shape[1]
        if read and earlier.kind == later.kind and earlier.layer < later.layer and width == read_width:
            yield earlier, later


def _note_layers(circuits: Circuits, layers: Mapping[Site, LayerWeights]) -> Iterator[str]:
    """What could not be computed in which layers, and how keys and values are shared."""
    reads = {site: circuits.reads[site] for site in layers}
    value_only = [site for site, weights in layers.items() if weights.query is None]
    unscored = [site for site in value_only if not reads[site].scored]
    for sites, note in (
        (
            [site for site in circuits.sites if site not in layers and site.kind != "cross"],
            "values or output projection were not found: left out",
        ),
        (unscored, "the softmax was seen, but not the queries and keys that it is of: V alone"),
        (
            [site for site in value_only if site not in unscored],
            "queries and keys are not a plain product: V alone",
        ),
        (
            [site for site in layers if reads[site].rotated],
            "rotary positions; Q- and K-composition are computed for distance 0",
        ),
    ):
        numbers = sorted({site.layer for site in sites})
        if numbers:
            yield f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {note}"
    shared = max((each.shared for each in reads.values()), default=1)
    if shared > 1:
        yield f"{shared} heads share each key and value: composition with one of them is composition with all"


LISTED_PAIRS = 4  # of each composition, since scores of different ones do not compare

EXPLAINED = (
    "score: how much of what a head writes is what the later one reads, from the weights alone; norms "
    "and MLPs between them are left out",
    "baseline: random matrices of the same shapes, ± how far their scores scatter",
)


def composition_answer(result: Compositions) -> Answer:
    """A map for each composition with the named head, and the largest lifts."""
    tables = {way: table for way in WAYS if (table := result.by(way))}
    lifts = (lift for table in tables.values() for row in table.values() for lift in row)
    limits = plain_limits(lifts, signed=True)
    maps = {
        way: head_map(
            table,
            "score minus random baseline",
            limits=limits,
            signed=True,
            title=f"what feeds the {WAYS[way]} of {result.fed and result.fed.name} · {way}-composition",
            subtitle=result.title,
        )
        for way, table in tables.items()
    }
    name = str if len({each.head.kind for each in result.feeds}) > 1 else attrgetter("name")
    by_way = group_by(result.feeds, attrgetter("way"))
    shown = [each for way in WAYS for each in by_way.get(way, [])[:LISTED_PAIRS]]
    more = len(result.feeds) - len(shown)
    listed = format_table(
        {
            "head": lambda each: name(each.head),
            "feeds the": lambda each: f"{WAYS[each.way]} of {name(each.fed)}",
            "score": "{0.score:.3f}",
            "baseline": "{0.baseline:.3f} ±{0.scatter:.3f}",
        },
        shown,
        left=("head", "feeds the"),
        notes=(*[f"--csv has {more:,} more"] * (more > 0), *EXPLAINED, *result.notes),
    )
    printed = (replace(each, subtitle="") for each in maps.values())
    views: tuple[View, ...] = (Table(subtitle=result.title), *printed, listed)
    names = ("head.kind", "head.name", "fed.name", "way", "score", "baseline", "scatter")
    header = ("kind", "head", "fed", *names[3:])
    return Answer(views, maps, lambda: result, lambda: [header, *map(attrgetter(*names), result.feeds)])


def _layer_weights(circuits: Circuits, site: Site) -> LayerWeights | None:
    """The projections of one call, if its input and output are known."""
    reads, wrote = circuits.reads[site], circuits.by_site.get(site)
    if site.kind == "cross" or wrote is None or reads.value is None:
        return None
    writes = reads.value.cpu(), wrote.weight.mT.cpu()
    if reads.query is None or reads.key is None:
        return LayerWeights(None, None, *writes)
    return LayerWeights(reads.query.cpu(), reads.key.cpu(), *writes)


def _require(fed: Head, layers: Mapping[Site, LayerWeights]) -> Head:
    """The head with its kind. Raises ``SelectionError`` unless it exists and has earlier heads."""
    same = [site for site in layers if fed.kind in (None, site.kind)]
    here = [site for site in same if site.layer == fed.layer and fed.head < len(layers[site].value)]
    if not same:
        raise ModelError("no layer has separable head weights: composition cannot be computed")
    if not here:
        numbers, most = [site.layer for site in same], max(len(each.value) for each in layers.values())
        raise SelectionError(f"no head {fed}: layers {min(numbers)}-{max(numbers)} have heads 0-{most - 1}")
    if all(site.layer >= fed.layer for site in layers):
        raise SelectionError(f"no head comes before {fed}: name one of a later layer")
    return Head(fed.layer, fed.head, here[0].kind)


MAX_TOKENS, CHUNK_TOKENS = 4096, 256
"""Tokens tried of a larger vocabulary, evenly spread over it, and tokens tried at a time."""

LISTED_COPYING = 8  # heads that are listed; the map and the numbers have all of them


@record("a head, and how it copies")
class HeadCopying:
    """A head's OV circuit on the tokens that it attends to."""

    head: Address
    copies: Annotated[float, Meaning("the share of tokens whose own logit rises most")]
    positive: Annotated[float, Meaning("the share of eigenvalues with a positive real part")]
    eigenvalues: Annotated[
        float, Meaning("the sum of the eigenvalues over the sum of their sizes, -1 to 1", shape=float)
    ]


@record("which heads copy, from the weights (--copying)", "info")
class Copying:
    """Every head that writes to the residual stream, the one that copies most tokens first."""

    heads: Annotated[tuple[HeadCopying, ...], Meaning("every head, the one that copies most tokens first")]
    tokens: Annotated[int, Meaning("the tokens that were tried")]
    vocabulary: Annotated[int, Meaning("the tokens of the vocabulary")]
    title: Annotated[str, Meaning("the model")]
    notes: Notes


class _Step(NamedTuple):
    """A module that ran, with the last token's rows of its input and output."""

    call: Call
    input: Tensor | None
    output: Tensor

    @property
    def works(self) -> bool:
        """Whether it is a single module that changes a state."""
        return not isinstance(self.call.module, PASSING) and not [*self.call.module.children()]

    @property
    def norm(self) -> Norm | None:
        """What it does to a state if it is a norm."""
        if self.input is None or not self.input.is_floating_point():
            return None
        return find_norm(self.call, self.input[None, None], self.output[None, None])


@dataclass(eq=False)
class _Steps(Circuits):
    """The projections of every call, and every module that ran in a pass, in order of completion."""

    ran: list[_Step] = field(default_factory=list)

    def _leave(self, call: Call, output: object) -> None:
        super()._leave(call, output)
        states = first_tensor(output)
        if states is not None and states.ndim and states.is_floating_point():
            with quietly():
                before = None if call.first is None else _last(call.first)
                self.ran.append(_Step(call, before, _last(states)))

    def first(self, name: str) -> _Step | None:
        """The first call of a module."""
        return next((step for step in self.ran if step.call.name == name), None)


PASSING = (nn.Dropout, nn.Identity, nn.Embedding)
"""Modules that pass a state on, and those in which it begins."""


def _layer_of(name: str) -> tuple[str | None, str] | None:
    """The path of the list of layers that a module is in, and its number there: the first of its path."""
    match = re.match(r"(?:(.*?)\.)??(\d+)(?=\.|$)", name)
    return None if match is None else (match[1], match[2])


def _last(states: Tensor) -> Tensor:
    """The states of the last token.  [..., width] -> [width]"""
    return states.reshape(-1, states.shape[-1])[-1].clone() if states.ndim > 1 else states


def _same(left: Tensor | None, right: Tensor) -> bool:
    return left is not None and torch.equal(left, right)


def measure_copying(model: Model, prepared: ModelInput) -> Copying:
    """Run the model once to see which weights belong to what; the text does not matter."""
    if prepared.replay is not None:
        raise ModelError("a trace holds no weights of the model: give the model")
    place_prediction(model, prepared, None)  # the error for a model without a head comes from here
    steps, module = _Steps(), getattr(model, "writer", None) or model.module
    with (
        torch.no_grad(),
        steps.watching(module),
        recording(module, [steps], prepared.axes, warn=False) as record,
    ):
        size = score_prediction(model, prepared, None).logits.shape[-1]
    embed, unembed, final = _ends_of(model, model.objective.ids(prepared), steps, size)
    size = min(len(embed), size)
    # the unembedding times the embedding, summed over the vocabulary in chunks
    product = torch.zeros(unembed.shape[1], embed.shape[1], dtype=torch.float64)  # [width, width]
    for start in range(0, size, CHUNK_TOKENS):
        some = slice(start, min(start + CHUNK_TOKENS, size))
        product += (unembed[some].mT @ embed[some]).double().cpu()
    rows = torch.arange(0, size, -(-size // MAX_TOKENS))
    heads: list[HeadCopying] = []
    left_out = set[int]()
    kinds = {site.kind for site in steps.sites}  # encoder heads beside a decoder write no logits
    writing = [site for site in steps.sites if site.kind == ("decoder" if "decoder" in kinds else "encoder")]
    for done, site in enumerate(writing):
        report("layer", done + 1, len(writing))
        parts = _fold(site, steps, final)
        if parts is None or parts[0].shape[1] != embed.shape[1] or parts[1].shape[2] != unembed.shape[1]:
            left_out.add(site.layer)
            continue
        for head, (value, output) in enumerate(zip(*parts, strict=True)):
            copies = _copied(embed, unembed[:size], value, output, rows)
            values = torch.linalg.eigvals(output.double().cpu() @ product @ value.double().cpu())
            positive, sizes = float((values.real > 0).double().mean()), float(values.abs().sum())
            share = float(values.real.sum()) / sizes if sizes else float("nan")
            heads.append(HeadCopying(Head(site.layer, head, site.kind), copies / len(rows), positive, share))
    notes = [*model.notes, *record.notes]
    if left_out:
        layers = ", ".join(map(str, sorted(left_out)))
        notes.append(f"layer {layers}: no plain path from the embedding through its values: left out")
    if not heads:
        raise ModelError(f"no OV circuit of {model.name} can be read from its weights")
    heads.sort(key=lambda each: (-each.copies, -each.eigenvalues))
    return Copying(tuple(heads), len(rows), size, model.title, tuple(notes))


def _copied(embed: Tensor, unembed: Tensor, value: Tensor, output: Tensor, rows: Tensor) -> int:
    """How many tokens of ``rows`` have their own logit raised most by a head.

    [vocabulary, width] twice, [width, size], [size, width]
    """
    count, writes = 0, output @ unembed.mT  # [size, vocabulary]
    for some in torch.split(rows, CHUNK_TOKENS):
        logits = embed[some] @ value @ writes  # [row, vocabulary]
        own = logits.gather(1, some[:, None].to(logits.device))[:, 0]
        count += int(((own >= logits.amax(1)) & (own > 0)).sum())
    return count


def _ends_of(model: Model, ids: Tensor, steps: _Steps, size: int) -> tuple[Tensor, Tensor, Norm | None]:
    """The embedding (norms folded in), the unembedding, both [vocabulary, width], and the norm before it."""
    lists = {layer[0] for site in steps.sites if (layer := _layer_of(site.name))}
    inside = [
        at
        for at, step in enumerate(steps.ran)
        if (layer := _layer_of(step.call.name)) is not None and layer[0] in lists
    ]
    first, behind = (inside[0], inside[-1] + 1) if inside else (0, 0)
    embed = _token_embedding(model, ids, steps)
    for step in steps.ran[:first]:
        if len(step.output) == embed.shape[1] and (norm := step.norm) is not None:
            embed = _folded(embed, norm)
    return embed, *_output_head(model, [step for step in steps.ran[behind:] if step.works], size)


def _token_embedding(model: Model, ids: Tensor, steps: _Steps) -> Tensor:
    """The weights of the first embedding that the token ids went into.  -> [vocabulary, width]"""
    for step in steps.ran:
        weight = weight_of(step.call.module)
        if isinstance(step.call.module, nn.Embedding) and _same(step.call.first, ids) and weight is not None:
            return weight.detach().float()
    raise ModelError(f"the token embedding of {model.name} was not found")


def _output_head(model: Model, behind: Sequence[_Step], size: int) -> tuple[Tensor, Norm | None]:
    """The unembedding, [vocabulary, width], and the norm before it, if these are all behind the layers."""
    matrix = _matrix_of(behind[-1], size) if behind else None
    norms = [step.norm for step in behind[-2:-1]]
    if matrix is None or len(behind) > 2 or None in norms:
        named = ", ".join(step.call.name for step in behind) or "nothing"
        raise ModelError(
            "--copying needs a model whose output head is a norm followed by one matrix: "
            f"{model.name} has {named} behind its last layer"
        )
    return matrix.float(), norms[0] if norms else None


def _folded(states: Tensor, norm: Norm) -> Tensor:
    """A norm's effect on what is written to the stream, up to a positive factor per token."""
    states = states - states.mean(-1, keepdim=True) if norm.centred else states
    return states * norm.scale.flatten().float()


def _matrix_of(step: _Step, size: int) -> Tensor | None:
    """The weight with which a module computed scores.  -> [vocabulary, width]"""
    if step.input is None or len(step.output) < size or not step.input.is_floating_point():
        return None
    module = step.call.module
    bias = weight_of(module, "bias")
    output = step.output.float() - (bias.detach().float() if bias is not None else 0)
    for name, _ in module.named_parameters(recurse=False):
        weight = weight_of(module, name)
        if weight is None or weight.ndim != 2:
            continue
        for oriented in orientations(weight.detach(), len(output), len(step.input)):
            product = oriented.float() @ step.input.float()
            if torch.allclose(product, output, atol=ALIKE * float(output.abs().amax())):
                return oriented
    return None


def _fold(site: Site, steps: _Steps, final: Norm | None) -> tuple[Tensor, Tensor] | None:
    """What the heads of a call read from a token and write to the unembedding, all norms folded in.

    -> [head, width, size], [head, size, width]
    """
    reads, wrote, attends = steps.reads[site].value, steps.by_site.get(site), steps.first(site.name)
    if reads is None or wrote is None or attends is None or attends.input is None:
        return None
    layer, writer = _layer_of(site.name), steps.first(wrote.name) or attends
    before = [step for step in steps.ran if step.works and _same(step.output, attends.input)]
    before = [step for step in before if _layer_of(step.call.name) in (None, layer)]
    value, output = reads.float(), wrote.weight.float()
    for step in before[:1]:
        norm = step.norm
        if norm is None:  # something else turns a state into the stream
            return None
        value = value * norm.scale.flatten().float()[:, None]
        value = value - value.mean(1, keepdim=True) if norm.centred else value
    behind = next(
        (norm for step in steps.ran if _same(step.input, writer.output) and (norm := step.norm)), None
    )
    for norm in (behind, final):
        output = output if norm is None else _folded(output, norm)
    return value, output


def copying_answer(result: Copying) -> Answer:
    """A map of the share of tokens that each head copies, and the heads that copy most."""
    shares = layer_rows({each.head: each.copies for each in result.heads})
    map_ = head_map(shares, "copies", limits=(0.0, 1.0), title=f"OV copying · {result.title}")
    tested = f"{result.tokens:,} of " if result.tokens < result.vocabulary else "all "
    table = format_table(
        {
            "head": "{0.head.name}",
            "copies": "{0.copies:.2f}",
            "positive": "{0.positive:.2f}",
            "eigenvalues": "{0.eigenvalues:+.2f}",
        },
        result.heads[:LISTED_COPYING],
        notes=(
            f"copies: share of {tested}{result.vocabulary:,} tokens whose own logit rises most where the "
            "head attends to them",
            "positive: share of the eigenvalues; eigenvalues: their sum over the sum of their sizes",
            "from the weights, norms folded in; MLPs are left out",
            *result.notes,
        ),
    )
    return Answer((map_, table), {}, lambda: result)
