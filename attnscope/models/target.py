"""The prediction that weights are asked about: whose score, and where in the text."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.attention import Token
from attnscope.axes import visible
from attnscope.errors import SelectionError
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model
from attnscope.models.tokens import readable
from attnscope.models.vocabulary import Vocabulary

MARKS = "Ġ▁"
"""What vocabularies begin a word with."""


def score_prediction(model: Model, prepared: ModelInput, target: str | None) -> tuple[Tensor, str]:
    """The score of one prediction of each text, summed, and a sentence that names the prediction.

    ``target`` is a word of the vocabulary, predicted behind the last token of the text (in the place of the
    first masked token, or else the last one, by a model of masked tokens), or the number of a token, behind
    or in place of which the likeliest word is taken; ``None``: the likeliest at the end. Raises
    ``ModelError`` for a model without an output head, and ``SelectionError`` for a target that is not there.
    """
    objective = model.objective
    ids = objective.ids(prepared)  # [text, token]
    axis = prepared.axes.get("decoder" if "decoder_input_ids" in prepared.inputs else "encoder")
    tokens = () if axis is None or isinstance(axis[0], range) else axis[0]
    number = target is not None and target.isascii() and target.isdigit()
    at = int(target or 0) if number else _last(ids[0], tokens, objective.mask)
    if at >= ids.shape[1]:
        raise SelectionError(f"no token {at:,} to predict at: the text has the tokens 0-{ids.shape[1] - 1:,}")
    texts = torch.arange(len(ids), device=model.device)
    logits = model.logits(prepared, texts, torch.full_like(texts, at)).float()  # [text, vocabulary]
    if target is None or number:
        chosen = logits.argmax(-1)
    else:
        chosen = torch.full_like(texts, _id_of(objective.vocabulary, target, logits[0].detach()))
    score = logits.gather(-1, chosen[:, None]).sum()
    logits = logits.detach()
    where = "behind" if objective.mask is None else "in the place of"
    if not tokens:
        return score, f"the prediction of each text: the likeliest token {where} its token {at:,}"
    spelled = visible(readable(objective.vocabulary.decode([int(chosen[0])])))
    share = float(logits[0].softmax(-1)[chosen[0]])
    return (
        score,
        f"the prediction: {spelled!r} ({share:.0%}) {where} token {at:,}, {visible(tokens[at].text)!r}",
    )


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
