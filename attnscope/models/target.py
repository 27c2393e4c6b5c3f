"""The prediction that weights are asked about: whose score, and where in the text."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import Token
from attnscope.axes import visible
from attnscope.errors import SelectionError
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model
from attnscope.models.tokens import readable
from attnscope.models.vocabulary import Vocabulary


class Prediction(NamedTuple):
    """The score of a prediction, summed over texts, the words that it is of, and the prediction in words."""

    score: Tensor
    chosen: int
    against: int | None
    said: str


MARKS = "Ġ▁"
"""What vocabularies begin a word with."""


def place_prediction(model: Model, prepared: ModelInput, target: str | None) -> int:
    """The number of the token that is predicted at.

    That which ``target`` names, or the last token of the text (the first masked one, or else the last, of a
    model of masked tokens). Raises ``ModelError`` for a model without an output head, and ``SelectionError``
    for a token that is not there.
    """
    objective = model.objective
    ids = objective.ids(prepared)  # [text, token]
    at = int(target or 0) if _is_number(target) else _last(ids[0], _tokens(prepared), objective.mask)
    if at >= ids.shape[1]:
        raise SelectionError(f"no token {at:,} to predict at: the text has the tokens 0-{ids.shape[1] - 1:,}")
    return at


def score_prediction(
    model: Model, prepared: ModelInput, target: str | None, against: str | None = None
) -> Prediction:
    """The score of one prediction of each text, summed, and a sentence that names the prediction.

    ``target`` is a word of the vocabulary, or the number of the token to predict at, where the likeliest word
    is taken; ``None``: the likeliest at the end. The score of the word ``against`` is taken away. Raises
    ``ModelError`` for a model without an output head, and ``SelectionError`` for a word that is not there.
    """
    at, objective, tokens = place_prediction(model, prepared, target), model.objective, _tokens(prepared)
    texts = torch.arange(len(objective.ids(prepared)), device=model.device)
    logits = model.logits(prepared, texts, torch.full_like(texts, at)).float()  # [text, vocabulary]
    if target is None or _is_number(target):
        chosen = logits.argmax(-1)
    else:
        chosen = torch.full_like(texts, _id_of(objective.vocabulary, target, logits[0].detach()))
    score = logits.gather(-1, chosen[:, None]).sum()
    over, other = "", None
    if against is not None:
        other = _id_of(objective.vocabulary, against, logits[0].detach())
        score = score - logits[:, other].sum()
        over = f" over {visible(against.strip())!r}"
    logits = logits.detach()
    where = "behind" if objective.mask is None else "in the place of"
    if not tokens:
        said = f"the prediction of each text: the likeliest token {where} its token {at:,}"
        return Prediction(score, int(chosen[0]), other, said)
    spelled = visible(readable(objective.vocabulary.decode([int(chosen[0])])))
    share = float(logits[0].softmax(-1)[chosen[0]])
    place = f"{where} token {at:,}, {visible(tokens[at].text)!r}"
    said = f"the prediction: {spelled!r} ({share:.0%}){over} {place}"
    return Prediction(score, int(chosen[0]), other, said)


def _is_number(target: str | None) -> bool:
    return target is not None and target.isascii() and target.isdigit()


def _tokens(prepared: ModelInput) -> tuple[Token, ...]:
    """The tokens on the side that is predicted; none where several texts are read together."""
    axis = prepared.axes.get("decoder" if "decoder_input_ids" in prepared.inputs else "encoder")
    return () if axis is None or isinstance(axis[0], range) else axis[0]


def _last(ids: Tensor, tokens: tuple[Token, ...], mask: int | None) -> int:
    """Where a text is predicted at: its first masked token, else the last that is no special one."""
    masked = (ids == mask).nonzero() if mask is not None else ids[:0]
    if len(masked):
        return int(masked[0])
    plain = [number for number, token in enumerate(tokens) if not token.special]
    return plain[-1] if plain else len(ids) - 1


def _id_of(vocabulary: Vocabulary, word: str, logits: Tensor) -> int:
    """The token that a word is; of several spellings the likeliest. Raises ``SelectionError``."""
    spellings = vocabulary.spell(list(range(len(logits))))
    known = [
        id_ for id_, spelled in enumerate(spellings) if spelled and spelled.lstrip(MARKS) == word.strip()
    ]
    if not known:
        raise SelectionError(
            f"no token {word!r} in the vocabulary: name one token, or the number of one of the text"
        )
    return max(known, key=lambda id_: float(logits[id_]))
