"""What a model is asked to predict in a text: each next token, or tokens that are masked from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import Token
from attnscope.errors import InputError
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model
from attnscope.progress import tell

TURNS = 7
"""A masked model reads as many copies of a text, each with every seventh token masked: all are, once."""

BATCH_TOKENS = 2048
"""Tokens of copies that go through a model together."""


class Target(NamedTuple):
    """One token to be predicted: which one, and the copy and position whose output predicts it."""

    text: int
    position: int  # of the token in its text
    copy: int
    at: int
    id: int


@dataclass(frozen=True, eq=False)
class PredictionBatch:
    """Copies of texts as one input, and the tokens that the model is to predict in them.

    ``texts`` says of which text each copy is one.
    """

    prepared: ModelInput
    texts: tuple[int, ...]
    targets: tuple[Target, ...]

    def logits(self, model: Model) -> Tensor:
        """One pass: the scores of each target over the vocabulary.  -> [target, vocabulary]"""
        copies = torch.tensor([target.copy for target in self.targets], device=model.device)
        at = torch.tensor([target.at for target in self.targets], device=model.device)
        return model.logits(self.prepared, copies, at)

    @property
    def target_ids(self) -> Tensor:
        """The tokens that are right.  -> [target]"""
        return torch.tensor([target.id for target in self.targets])


def batch_predictions(
    model: Model, prepared: ModelInput, texts: Sequence[Sequence[Token]]
) -> Iterator[PredictionBatch]:
    """What a model is to predict in texts of one length, in batches of about ``BATCH_TOKENS``.

    ``texts`` are the tokens on the side that the model predicts: the decoder's, where there are two. Special
    tokens are no targets. A causal model predicts each next token in one copy of a text; a masked one reads
    ``TURNS`` copies, and in copy ``c`` the tokens number ``c``, ``c + TURNS``, ... are masked. Raises
    ``ModelError`` for a model without an output head, ``InputError`` for texts with nothing to predict.
    """
    objective = model.objective
    copies = [copy for text, tokens in enumerate(texts) for copy in _copies(text, tokens, objective.mask)]
    if not copies:
        raise InputError("there is no token to predict in the text: give a longer one")
    size = max(1, BATCH_TOKENS // len(texts[0]))
    for start in range(0, len(copies), size):
        batch = copies[start : start + size]
        rows = torch.tensor([copy[0].text for copy in batch], device=model.device)
        inputs = {name: tensor[rows] for name, tensor in prepared.inputs.items()}
        arguments = tuple(tensor[rows] for tensor in prepared.arguments)
        copied = replace(prepared, inputs=inputs, arguments=arguments)
        if objective.mask is not None:
            ids = objective.ids(copied)  # [copy, token], a new tensor already
            for number, copy in enumerate(batch):
                ids[number, [target.position for target in copy]] = objective.mask
        targets = [target._replace(copy=number) for number, copy in enumerate(batch) for target in copy]
        tokens = tuple(token for copy in batch for token in texts[copy[0].text])
        yield PredictionBatch(
            replace(copied, tokens=tokens),
            tuple(copy[0].text for copy in batch),
            tuple(targets),
        )
        tell("pass", start // size + 1, -(-len(copies) // size))


def _copies(text: int, tokens: Sequence[Token], mask: int | None) -> Iterator[list[Target]]:
    """The targets of each copy of a text; a copy without any is left out."""
    plain = [position for position, token in enumerate(tokens) if not token.special]
    if mask is None:
        parts = [[position for position in plain if position > 0]]
    else:
        parts = [plain[start::TURNS] for start in range(TURNS)]
    back = 1 if mask is None else 0
    for part in parts:
        if part:
            yield [Target(text, position, 0, position - back, tokens[position].id) for position in part]
