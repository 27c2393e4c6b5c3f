"""What a model predicts with one head's output set to zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.analysis.corpus.batches import join_texts
from attnscope.analysis.intervention.importance import gated_sites, predicted_side
from attnscope.analysis.selection import Asked, selection_of
from attnscope.analysis.sentences import (
    kind_title,
    name_pass,
    require_selected,
)
from attnscope.attention import Kind
from attnscope.capture import recording
from attnscope.capture.hooks.gate import gated, zeroed
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.predictions import TURNS, batch_predictions
from attnscope.models.text.tokens import readable
from attnscope.models.text.vocabulary import Vocabulary

LIKELIEST = 3
"""Predictions that are named at each token."""


@dataclass(frozen=True)
class Changed:
    """One prediction before and after: ``divergence`` is KL(before || after) in nats.

    ``token`` is how the text has it and ``wanted`` how the vocabulary does. ``before`` and ``after`` are the
    likeliest tokens with their probabilities, ``right`` the probabilities of the one that stands in the text.
    """

    token: str
    wanted: str
    position: int
    divergence: float
    before: tuple[tuple[str, float], ...]
    after: tuple[tuple[str, float], ...]
    right: tuple[float, float]


@dataclass(frozen=True)
class Ablation:
    """What changed in a model's predictions, those that changed most first.

    ``divergence`` is the mean over the predictions, ``losses`` the mean cross-entropy before and after, in
    nats.
    """

    head: str
    kind: Kind
    title: str
    changed: tuple[Changed, ...]
    divergence: float
    losses: tuple[float, float]
    notes: tuple[str, ...]


def ablate(model: Model, prepared: ModelInput, asked: Asked) -> Ablation:
    """Ask the model for its predictions as it is, and with the output of one head set to zero.

    A causal model predicts each next token; a masked one each token, hidden in turns. Raises ``ModelError``
    for a model without an output head or whose heads cannot be gated, ``SelectionError`` for a head that does
    not exist, and ``InputError`` for a text with nothing to predict.
    """
    selection = selection_of(asked)
    if selection.head is None:
        raise SelectionError("which head is to be taken away? name one, like L5H3")
    batch = join_texts([prepared])
    tokens = predicted_side(batch.labels)[0]
    vocabulary = model.objective.vocabulary
    changes: list[Changed] = []
    losses: list[Tensor] = []
    kind: Kind = "encoder"
    for predictions in batch_predictions(model, batch.prepared, [tokens]):
        with torch.no_grad(), model.threads(predictions.prepared):
            with gated(lambda number, heads: None) as gates, recording(model.module, warn=False) as record:
                before = predictions.logits(model)
            gated_sites(model, record, gates)
            meant = [call for call, site in enumerate(record.sites) if selection.heads(site.site, site.heads)]
            require_selected(meant, record, selection)
            kind = record.sites[meant[0]].site.kind
            with gated(zeroed(meant[0], selection.head.head)):
                after = predictions.logits(model)
        pair = (
            torch.stack([before, after]).double().cpu().log_softmax(-1)
        )  # [before | after, target, vocabulary]
        right = pair.gather(-1, predictions.target_ids.expand(2, -1)[..., None])[
            ..., 0
        ]  # [before | after, target]
        losses.append(-right)
        divergence = F.kl_div(pair[1], pair[0], reduction="none", log_target=True).sum(-1)  # [target]
        tops = pair.exp().topk(LIKELIEST)
        for number, target in enumerate(predictions.targets):
            named = [
                tuple((_read(vocabulary, id_), share) for id_, share in zip(ids, shares, strict=True))
                for ids, shares in zip(
                    tops.indices[:, number].tolist(), tops.values[:, number].tolist(), strict=True
                )
            ]
            one, other = right[:, number].exp().tolist()
            changes.append(
                Changed(
                    tokens[target.position].text,
                    _read(vocabulary, target.id),
                    target.position,
                    float(divergence[number]),
                    named[0],
                    named[1],
                    (one, other),
                )
            )
    was, is_ = torch.cat(losses, 1).mean(1).tolist()
    return Ablation(
        head=selection.head.name,
        kind=kind,
        title=f"{name_pass(model, prepared)} · {kind_title(kind)}",
        changed=tuple(sorted(changes, key=lambda one: -one.divergence)),
        divergence=sum(one.divergence for one in changes) / len(changes),
        losses=(was, is_),
        notes=(*model.notes, *prepared.notes, *record.notes, *_note_turns(model)),
    )


def _note_turns(model: Model) -> tuple[str, ...]:
    """What a masked model does not see while it predicts."""
    if model.objective.mask is None:
        return ()
    return (f"a token is predicted while it is hidden, with every {TURNS}th other one",)


def _read(vocabulary: Vocabulary, id_: int) -> str:
    """A token of the vocabulary as a person reads it."""
    spelled = vocabulary.spell([id_])[0] or f"id {id_:,}"
    return spelled if spelled.startswith("##") else readable(vocabulary.decode([id_])) or spelled
