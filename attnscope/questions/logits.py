"""Direct logit attribution: what each part of a model adds to one score, norms' scales held constant.

nostalgebraist 2020; Elhage et al. 2021; Wang et al. 2022. The final states of a model are a sum: the
embeddings, the outputs of each head and each feed-forward layer, and biases. With the standard deviation
of every norm fixed to that of this pass, each summand has a part in the score, and the parts sum to it.

The logit lens: what a model would predict if it ended after each of its layers. The final norm and the output
head are the model's own: the residual stream after each layer replaces the last layer's output, and the rest
of the model runs as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Annotated

import torch
from torch import Tensor

from attnscope.attention import Head
from attnscope.capture import Record, recording
from attnscope.capture.effects import Effects, sum_parts
from attnscope.capture.record import tolerance
from attnscope.capture.stream import Lost, Stream, StreamRows
from attnscope.errors import ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.targets import Prediction, place_prediction, score_prediction
from attnscope.models.text.tokens import without_marks
from attnscope.questions.answer import Answer
from attnscope.questions.intervention import LayerPass
from attnscope.questions.loss import Likeliest, name_likeliest, read_token, show_likeliest
from attnscope.questions.sentences import name_pass
from attnscope.records import Address, Meaning, Notes, Parts, derived, record
from attnscope.views import Column, MovedWords, Table, Term, Terms, View, effect_maps

HEADS = 5  # heads whose words are listed, unless one is named
WORDS = 8  # words of each head, in each direction


@record("a word")
class Word:
    """A word of the vocabulary, and how far a head's output changes its logit."""

    text: Annotated[str, Meaning("the word")]
    moved: Annotated[float, Meaning("how far its score is moved")]


Effect = Annotated[float, Meaning("what it writes")]


@record("a head")
class HeadEffect:
    """A head, and what it adds to a score."""

    head: Address
    effect: Effect
    error: Annotated[float | None, Meaning("its standard error over prompts; null for one text")] = None


@record("a layer")
class LayerEffect:
    """What a layer adds to a score beside its attention."""

    layer: Annotated[int, Meaning("its number")]
    effect: Effect


@record("a module")
class ModuleEffect:
    """What another module that mixes tokens adds to a score."""

    layer: Annotated[int, Meaning("its layer")]
    module: Annotated[str, Meaning("its path in the layer, or attention, whose heads are not told apart")]
    effect: Effect


@record("a head: the one that is named, or those that write most")
class Favours:
    """The words whose logits a head's output raises and lowers most."""

    head: Address
    raised: Annotated[tuple[Word, ...], Meaning("the words whose scores its output raises most")]
    lowered: Annotated[tuple[Word, ...], Meaning("those that it lowers most")]


@record("what each part writes to the score of a token, in logits", "logits")
class Writes:
    """The direct effects of all parts on one score (they sum to it), and the words of some heads.

    ``rest`` is the rounding error. ``prediction`` names the score.
    """

    effects: Annotated[Effects, Parts(embeddings="what the embeddings write", biases="what biases write")]
    words: Annotated[tuple[Favours, ...], Meaning("the words that heads move")]
    score: Annotated[float, Meaning("the score, which all parts sum to")]
    rest: Annotated[float, Meaning("the part of the score lost to rounding")]
    prediction: Annotated[str, Meaning("whose score it is, in words")]
    title: Annotated[str, Meaning("the model and the text")]
    notes: Annotated[tuple[str, ...], Meaning("what to know of the numbers")]
    errors: Mapping[Head, float] = field(default_factory=dict)  # over prompts

    @derived("every head")
    def heads(self) -> list[HeadEffect]:
        return [HeadEffect(*each, self.errors.get(each[0])) for each in self.effects.heads.items()]

    @derived("what each layer adds beside its attention")
    def feed_forward(self) -> list[LayerEffect]:
        return [LayerEffect(*each) for each in sorted(self.effects.feed_forward.items())]

    @derived("other modules that mix tokens")
    def mixers(self) -> list[ModuleEffect]:
        return [ModuleEffect(*where, effect) for where, effect in sorted(self.effects.mixers.items())]


def require_weights(prepared: ModelInput) -> None:
    """Raises ``ModelError`` for a trace."""
    if prepared.replay is not None:
        raise ModelError("a trace holds no weights of the model: give the model and the text")


@contextmanager
def watching_stream(model: Model, prepared: ModelInput, states: StreamRows) -> Iterator[Record]:
    """A pass inside the block keeps its gradients, and ``states`` see its stream and its attention."""
    model.learn_kinds(prepared)
    with (
        torch.enable_grad(),
        model.threads(prepared),
        states.watching(model.module),
        recording(model.module, [states], prepared.axes, warn=False) as record,
    ):
        yield record


def direct_effects(
    model: Model, prepared: ModelInput, target: str | None, against: str | None, head: Head | None = None
) -> Writes:
    """Decompose the score of ``target`` minus ``against``; ``head`` is the one whose words are told."""
    require_weights(prepared)
    at = place_prediction(model, prepared, target)
    rows = StreamRows(length=model.objective.ids(prepared).shape[1], at=at)
    with watching_stream(model, prepared, rows) as record:
        prediction = score_prediction(model, prepared, target, against)
    logits = prediction.logits
    if logits.grad_fn is None:
        raise ModelError(f"the direct effects of {model.name} cannot be computed: it keeps no gradients")
    seed = torch.zeros_like(logits)
    seed[0, prediction.chosen] += 1
    if prediction.against is not None:
        seed[0, prediction.against] -= 1
    seed.requires_grad_(True)
    try:
        stream = Stream((logits.grad_fn, logits.output_nr), rows)
        with torch.enable_grad(), model.threads(prepared):
            effects = sum_parts(stream, stream.walk(seed))
    except Lost as lost:
        raise ModelError(f"the direct effects of {model.name} cannot be computed: {lost}") from None
    score = float(prediction.score.detach())
    rest = score - effects.total
    near = tolerance(logits.dtype if not rows.sites else record.sites[0].dtype)
    if not abs(rest) <= near * max(1.0, effects.size):
        raise ModelError(
            f"the direct effects of {model.name} cannot be computed: its parts sum to {effects.total:.4g}, "
            f"its score is {score:.4g}"
        )
    chosen = effects.largest_heads(HEADS)
    if head is not None:
        place = head.layer, head.head
        chosen = [e for e in effects.heads if (e.layer, e.head) == place and head.kind in (None, e.kind)][:1]
    if head is not None and not chosen:
        layers = sorted({each.layer for each in effects.heads})
        if not layers:
            raise SelectionError("no head of this model can be separated from its layer")
        most = max(each.head for each in effects.heads)
        raise SelectionError(f"no head {head}: layers {layers[0]}-{layers[-1]} have heads 0-{most}")
    words = tuple(_favours(model, each, effects.slopes(each, seed)) for each in chosen)
    frozen = "norm scales are"
    if activations := dict.fromkeys(stream.fixed_activations):
        frozen = f"norm scales and the output head's {' and '.join(activations)} are"
    notes = [f"units: logits; {frozen} held fixed, so the contributions add up to the score"]
    for layers_noted, what in (
        (effects.mixed, "some heads cannot be separated; their sum is shown"),
        (effects.silent, "its heads reach the score only through later layers: their direct effect is 0"),
    ):
        notes += [f"layer {', '.join(map(str, sorted(layers_noted)))}: {what}"] if layers_noted else []
    notes += [*model.notes, *prepared.notes, *record.notes]
    title = name_pass(model, prepared)
    return Writes(effects, words, score, rest, prediction.description, title, tuple(notes))


def _favours(model: Model, head: Head, moved: Tensor) -> Favours:
    vocabulary = model.objective.vocabulary
    moved = moved.clone()
    moved[[number for number in vocabulary.special if number < len(moved)]] = 0
    count = min(WORDS, len(moved))

    def spell(sign: int) -> tuple[Word, ...]:
        values, ids = (moved * sign).topk(count)
        texts = [without_marks(vocabulary.decode([number])) for number in ids.tolist()]
        return tuple(
            Word(text, sign * value) for text, value in zip(texts, values.tolist(), strict=True) if value > 0
        )

    return Favours(head, spell(1), spell(-1))


LISTED_PARTS = 10  # parts that are listed; the numbers have all of them


def logits_answer(result: Writes, head: Head | None = None) -> Answer:
    """The groups of parts, the largest parts, the words that heads move, and maps of all heads."""
    effects, several = result.effects, len({each.kind for each in result.effects.heads}) > 1

    def name(each: Head) -> str:
        error = result.errors.get(each)
        return (str(each) if several else each.name) + ("" if error is None else f" ±{error:.2f}")

    kinds = {
        "heads": {name(each): effect for each, effect in effects.heads.items()},
        "feed-forward": {f"feed-forward {layer}": effect for layer, effect in effects.feed_forward.items()},
        "other mixers": {f"{module} {layer}": each for (layer, module), each in effects.mixers.items()},
        "embeddings": {"embeddings": effects.embeddings},
        "biases": {"biases": effects.biases},
    }
    parts = {name: effect for members in kinds.values() for name, effect in members.items()}
    listed_heads = [name(each.head) for each in result.words]  # heads whose words are listed below
    order = sorted(parts, key=lambda part: (part not in listed_heads, -abs(parts[part])))
    listed = sorted(order[:LISTED_PARTS], key=lambda part: -abs(parts[part]))
    rest = order[LISTED_PARTS:]
    maps = effect_maps(effects.heads, "added to the score", unit="logits")
    view = Terms(
        groups=tuple(Term(kind, sum(members.values())) for kind, members in kinds.items() if members),
        total=Term("= the score", result.score),
        largest=tuple(Term(part, parts[part]) for part in listed),
        rest=Term(f"{len(rest):,} others", sum(parts[part] for part in rest)) if rest else None,
        moved=tuple(
            MovedWords(
                name(each.head),
                *(
                    tuple(Term(w.text if w.text.strip(" ") else "␣" * len(w.text), w.moved) for w in words)
                    for words in (each.raised, each.lowered)
                ),
            )
            for each in result.words
        ),
        marked=listed_heads[0] if head is not None else None,
        heads=next(iter(maps.values()), None),
        title=f"what each part adds to the score · {result.title}",
        subtitle=result.prediction,
        notes=result.notes,
    )
    views: list[View] = [replace(view, notes=()), *maps.values()]
    views[-1] = replace(views[-1], notes=result.notes)
    return Answer(tuple(views), {"writes": view}, lambda: result)


LIKELIEST = 5  # tokens named for each layer


@record("a prediction read off after a layer")
class LayerPrediction:
    """What the final norm and the output head make of the residual stream after a layer."""

    layer: Annotated[int, Meaning("its number")]
    rank: Annotated[float, Meaning("the rank of the target, 1 if no token is more likely")]
    log_probability: Annotated[float, Meaning("the log-probability of the target, in nats")]
    difference: Annotated[float | None, Meaning("its logit less that of --against; null without it")]
    likeliest: Annotated[Likeliest, Meaning("the most likely tokens, and their probabilities")]


@record("the logit lens (--by layer)", "logits")
class Lens:
    """The prediction after every layer; the last one is the model's own."""

    target: Annotated[str, Meaning("the target")]
    prediction: Annotated[str, Meaning("the prediction of the whole model, in words")]
    layers: Annotated[tuple[LayerPrediction, ...], Meaning("every layer, the first one first")]
    title: Annotated[str, Meaning("the model and the text")]
    notes: Notes


def logit_lens(model: Model, prepared: ModelInput, target: str | None, against: str | None = None) -> Lens:
    """The prediction of ``target`` after every layer, each with the most likely tokens."""
    if prepared.replay is not None:
        raise ModelError("a trace holds no weights of the model: give the model and the text")
    place_prediction(model, prepared, target)  # the error for a model without a head comes from here
    with torch.no_grad(), model.threads(prepared):
        first = LayerPass.run(model, prepared, lambda: score_prediction(model, prepared, target, against))
        prediction: Prediction = first.before
        logits = _read_off(model, prepared, first, prediction).double().cpu()  # [layer, vocabulary]
    chosen, other = prediction.chosen, prediction.against
    predictions = (
        LayerPrediction(
            layer=layer,
            rank=1 + int((each > each[chosen]).sum()),
            log_probability=float(each.log_softmax(-1)[chosen]),
            difference=None if other is None else float(each[chosen] - each[other]),
            likeliest=name_likeliest(model.objective.vocabulary, each.softmax(-1), LIKELIEST),
        )
        for layer, each in enumerate(logits)
    )
    return Lens(
        target=read_token(model.objective.vocabulary, chosen),
        prediction=prediction.description,
        layers=tuple(predictions),
        title=name_pass(model, prepared),
        notes=(*model.notes, *prepared.notes, *first.record.notes),
    )


def _read_off(model: Model, prepared: ModelInput, first: LayerPass, prediction: Prediction) -> Tensor:
    """The logits after each layer of the last list. Raises ``ModelError`` if layers return no stream.

    Each layer's row takes the place of one token; no layer runs again.  -> [layer, vocabulary]
    """
    last, length = first.attending[-1][0], model.objective.ids(prepared).shape[1]
    ran = [each.states for each in first.ran[: last + 1] if each.stack == first.ran[last].stack]
    streams = [states for states in ran if states is not None]
    shapes = {states.shape for states in streams}
    if len(streams) < len(ran) or len(shapes) > 1 or streams[-1][..., 0].numel() != length:
        raise ModelError(f"the layers of {model.name} do not each give one state a token")
    rows = torch.stack([states.reshape(length, -1)[prediction.at] for states in streams])  # [layer, width]
    parts = []
    for some in torch.split(rows, length):
        changed = torch.cat([some, streams[-1].reshape(length, -1)[len(some) :]]).view_as(streams[-1])
        with first.changing(last, changed):
            places = torch.arange(len(some), device=model.device)
            parts.append(model.logits(prepared, torch.zeros_like(places), places).float())
    logits = torch.cat(parts)
    own = prediction.logits[0]
    near = tolerance(streams[-1].dtype) * max(1.0, float(own.abs().max()))
    if not float((logits[-1] - own).abs().max()) <= near:
        raise ModelError(f"what {model.name} computes after its last layer is not done token by token")
    return logits


def lens_answer(result: Lens) -> Answer:
    """One line per layer: the target's rank and log-probability, and the most likely tokens."""
    against = any(each.difference is not None for each in result.layers)
    with_tokens = any(each.likeliest for each in result.layers)
    named = ("layer", "rank", "log-prob", *(["difference"] if against else []))
    table = Table(
        (*(Column(name, True, "keep") for name in named), *([Column("most likely")] if with_tokens else [])),
        tuple(
            (
                f"{each.layer}",
                f"{each.rank:,.{int(bool(each.rank % 1))}f}",
                f"{each.log_probability:.2f}",
                *([f"{each.difference:+.2f}"] if each.difference is not None else []),
                *([show_likeliest(each.likeliest, result.target)] if with_tokens else []),
            )
            for each in result.layers
        ),
        title=f"logit lens · {result.title}",
        subtitle=result.prediction,
        notes=(f"rank and log-probability (nats) of {result.target!r} after each layer", *result.notes),
    )
    return Answer((table,), {}, lambda: result)
