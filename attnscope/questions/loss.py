"""How well a model predicts: each token of a text, and the lines of files, each as its own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from attnscope.attention import Token
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Limit
from attnscope.models.targets import batch_predictions
from attnscope.progress import listening, tell
from attnscope.questions.ablate import predicted_side
from attnscope.questions.corpus import batches, join_texts
from attnscope.questions.head import TokenLoss

WINDOW = 1024  # lines among which equal lengths are batched


@dataclass(frozen=True)
class Loss:
    """Mean cross-entropy in nats; ``masked``: each token was masked when it was predicted."""

    mean: float
    tokens: int
    vocabulary: int
    masked: bool


def token_losses(model: Model, prepared: ModelInput) -> tuple[TokenLoss, ...]:
    """The loss of every token on the side that a model predicts: next tokens, or each token while masked."""
    batch = join_texts([prepared])
    tokens = predicted_side(batch.labels)[0]
    losses: dict[int, float] = {}
    for predictions in batch_predictions(model, batch.prepared, [tokens]):
        with torch.inference_mode(), model.threads(predictions.prepared):
            found = predictions.losses(model).tolist()
        losses |= {target.position: each for target, each in zip(predictions.targets, found, strict=True)}
    return tuple(TokenLoss(token.text, losses.get(place)) for place, token in enumerate(tokens))


def measure_loss(model: Model, lines: Sequence[str], length: int) -> Loss:
    """Have a model predict the first ``length`` tokens of each line; a line counts by its tokens."""
    total, tokens, vocabulary = 0.0, 0, 0
    masked = model.objective.mask is not None
    for start in range(0, len(lines), WINDOW):
        window = [(line,) for line in lines[start : start + WINDOW]]
        read = model.prepare_all(window, Limit(length, truncate=True))
        for batch in batches(text for text in read if isinstance(text, ModelInput)):
            texts = predicted_side(batch.labels)
            if not any(_asks(text, masked) for text in texts):
                continue
            with listening(None):
                for predictions in batch_predictions(model, batch.prepared, texts):
                    with torch.inference_mode(), model.threads(predictions.prepared):
                        for logits, wanted in predictions.scored(model):
                            total += float(F.cross_entropy(logits, wanted, reduction="sum"))
                            tokens, vocabulary = tokens + len(wanted), logits.shape[-1]
        tell("line", start + len(window), len(lines))
    if not tokens:
        raise InputError("there is no token to predict in the files: give longer texts")
    return Loss(total / tokens, tokens, vocabulary, masked)


def _asks(text: Sequence[Token], masked: bool) -> bool:
    return any(not token.special and (masked or place > 0) for place, token in enumerate(text))
