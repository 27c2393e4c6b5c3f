"""The logit lens: what a model would predict if it ended after each of its layers.

nostalgebraist 2020. The final norm and the output head are the model's own: the residual stream after
each layer replaces the last layer's output, and the rest of the model runs as usual.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from attnscope.capture.record import tolerance
from attnscope.errors import ModelError
from attnscope.models import Model, ModelInput
from attnscope.models.targets import Prediction, place_prediction, score_prediction
from attnscope.questions.ablate import Likeliest, name_likeliest, read_token, show_likeliest
from attnscope.questions.answer import Answer
from attnscope.questions.intervention import KeptLayers, attending_layers, run_keeping_layers
from attnscope.questions.sentences import name_pass
from attnscope.records import Meaning, Notes, record
from attnscope.views.table import Column, Table

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
    """The prediction of ``target`` after every layer, each with the most likely tokens.

    Raises ``ModelError`` for a model without an output head, or without consecutive layers.
    """
    if prepared.replay is not None:
        raise ModelError("a trace holds no weights of the model: give the model and the text")
    place_prediction(model, prepared, target)  # the error for a model without a head comes from here
    with torch.no_grad(), model.threads(prepared):
        prediction, kept, seen = run_keeping_layers(
            model, prepared, lambda: score_prediction(model, prepared, target, against)
        )
        del kept.ran[attending_layers(model, kept, seen)[-1][0] + 1 :]
        logits = _read_off(model, prepared, kept, prediction).double().cpu()  # [layer, vocabulary]
    chosen, other = prediction.chosen, prediction.against
    probabilities = logits.softmax(-1)
    found = []
    for layer, (each, shares) in enumerate(zip(logits, probabilities, strict=True)):
        found.append(
            LayerPrediction(
                layer=layer,
                rank=1 + int((each > each[chosen]).sum()),
                log_probability=float(each.log_softmax(-1)[chosen]),
                difference=None if other is None else float(each[chosen] - each[other]),
                likeliest=name_likeliest(model.objective.vocabulary, shares, LIKELIEST),
            )
        )
    return Lens(
        target=read_token(model.objective.vocabulary, chosen),
        prediction=prediction.description,
        layers=tuple(found),
        title=name_pass(model, prepared),
        notes=(*model.notes, *prepared.notes, *seen.notes),
    )


def _read_off(model: Model, prepared: ModelInput, kept: KeptLayers, prediction: Prediction) -> Tensor:
    """The logits after each layer of the last list. Raises ``ModelError`` if layers return no stream.

    Each layer's row takes the place of one token; no layer runs again.  -> [layer, vocabulary]
    """
    final, length = kept.ran[-1], model.objective.ids(prepared).shape[1]
    ran = [each.states for each in kept.ran if each.stack == final.stack]
    streams = [states for states in ran if states is not None]
    shapes = {states.shape for states in streams}
    if len(streams) < len(ran) or len(shapes) > 1 or streams[-1][..., 0].numel() != length:
        raise ModelError(f"the layers of {model.name} do not each give one state a token")
    rows = torch.stack([states.reshape(length, -1)[prediction.at] for states in streams])  # [layer, width]
    found = []
    for some in torch.split(rows, length):
        changed = torch.cat([some, streams[-1].reshape(length, -1)[len(some) :]]).view_as(streams[-1])
        kept.ran[-1] = final.with_states(changed)
        with kept.giving(kept.ran):
            places = torch.arange(len(some), device=model.device)
            found.append(model.logits(prepared, torch.zeros_like(places), places).float())
    logits = torch.cat(found)
    own = prediction.logits[0]
    near = tolerance(streams[-1].dtype) * max(1.0, float(own.abs().max()))
    if not float((logits[-1] - own).abs().max()) <= near:
        raise ModelError(f"what {model.name} computes after its last layer is not done token by token")
    return logits


def of_lens(result: Lens) -> Answer:
    """One line per layer: the target's rank and log-probability, and the most likely tokens."""
    against = any(each.difference is not None for each in result.layers)
    told = any(each.likeliest for each in result.layers)
    named = ("layer", "rank", "log-prob", *(["difference"] if against else []))
    table = Table(
        (*(Column(name, True, "keep") for name in named), *([Column("most likely")] if told else [])),
        tuple(
            (
                f"{each.layer}",
                f"{each.rank:,.{int(bool(each.rank % 1))}f}",
                f"{each.log_probability:.2f}",
                *([f"{each.difference:+.2f}"] if each.difference is not None else []),
                *([show_likeliest(each.likeliest, result.target)] if told else []),
            )
            for each in result.layers
        ),
        title=f"logit lens · {result.title}",
        subtitle=result.prediction,
        notes=(f"rank and log-probability (nats) of {result.target!r} after each layer", *result.notes),
    )
    return Answer((table,), {}, lambda: result)
