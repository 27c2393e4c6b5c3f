"""What a model is asked to guess in a text: each next token, or tokens that are hidden from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import Token
from attnscope.errors import InputError
from attnscope.models.model import Model, Prepared

HIDDEN = 7
"""A masked model gets as many copies of a text, each with every seventh token hidden: all are, once."""

TOGETHER = 2048
"""Tokens of copies that go through a model together."""


class Guess(NamedTuple):
    """One token to be guessed: which one, and the copy and position whose output guesses it."""

    text: int
    position: int  # of the token in its text
    copy: int
    at: int
    id: int


@dataclass(frozen=True, eq=False)
class Question:
    """Copies of texts as a model is asked, and what it is to guess in them.

    ``prepared`` holds the copies as one batch, ``texts`` says of which text each is a copy.
    """

    prepared: Prepared
    texts: tuple[int, ...]
    guesses: tuple[Guess, ...]

    def logits(self, model: Model) -> Tensor:
        """One pass: the scores of each guess over the vocabulary.  -> [guess, vocabulary]"""
        copies = torch.tensor([guess.copy for guess in self.guesses], device=model.device)
        at = torch.tensor([guess.at for guess in self.guesses], device=model.device)
        return model.logits(self.prepared, copies, at)

    @property
    def wanted(self) -> Tensor:
        """The tokens that are right.  -> [guess]"""
        return torch.tensor([guess.id for guess in self.guesses])


def questions(model: Model, prepared: Prepared, texts: Sequence[Sequence[Token]]) -> Iterator[Question]:
    """What to ask a model about a batch of texts of one length, in portions that fit together.

    ``texts`` are the tokens on the side that the model guesses: the decoder's, where there are two. Special
    tokens are not asked for. A causal model guesses each next token in one copy of a text; a masked one gets
    ``HIDDEN`` copies, and in copy ``c`` the tokens number ``c``, ``c + HIDDEN``, ... are hidden. Raises
    ``ModelError`` for a model without an output head, ``InputError`` for texts with nothing to guess.
    """
    asked = model.asked
    found = [copy for text, tokens in enumerate(texts) for copy in _copies(text, tokens, asked.mask)]
    if not found:
        raise InputError("there is no token to guess in the text: give a longer one")
    size = max(1, TOGETHER // len(texts[0]))
    for start in range(0, len(found), size):
        chosen = found[start : start + size]
        rows = torch.tensor([copy[0].text for copy in chosen], device=model.device)
        inputs = {name: tensor[rows] for name, tensor in prepared.inputs.items()}
        if asked.mask is not None:
            ids = inputs[asked.input]  # [copy, token], a new tensor already
            for number, copy in enumerate(chosen):
                ids[number, [guess.position for guess in copy]] = asked.mask
        guesses = [guess._replace(copy=number) for number, copy in enumerate(chosen) for guess in copy]
        tokens = tuple(token for copy in chosen for token in texts[copy[0].text])
        yield Question(
            replace(prepared, inputs=inputs, tokens=tokens), tuple(c[0].text for c in chosen), tuple(guesses)
        )


def _copies(text: int, tokens: Sequence[Token], mask: int | None) -> Iterator[list[Guess]]:
    """The guesses of each copy of a text; a copy without any is left out."""
    plain = [position for position, token in enumerate(tokens) if not token.special]
    if mask is None:
        parts = [[position for position in plain if position > 0]]
    else:
        parts = [plain[start::HIDDEN] for start in range(HIDDEN)]
    back = 1 if mask is None else 0
    for part in parts:
        if part:
            yield [Guess(text, position, 0, position - back, tokens[position].id) for position in part]
