"""The own encoder as a ``Model``: bundled with the package, or a folder that attnscope saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.attention import Token
from attnscope.errors import InputError, ModelError
from attnscope.models.foreign import explained
from attnscope.models.inputs import ModelInput, Objective, text_axes
from attnscope.models.text.reader import ReaderModel, TextReader
from attnscope.models.text.tokens import Encoded
from attnscope.network import Encoder, load_encoder, untrained
from attnscope.network.folder import BUNDLED, MASK, PRETRAINED, WEIGHTS
from attnscope.text import MOST_CHARACTERS

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class OwnModel(ReaderModel):
    """The own encoder with its tokenizer."""

    stateless = True

    def __init__(self, name: str, module: Encoder, tokenizer: Tokenizer, notes: Sequence[str] = ()) -> None:
        super().__init__(
            name,
            module,
            TextReader(tokenizer, name),
            module.config.max_positions,
            notes,
        )
        self.encoder = module

    def prepare_all(
        self, texts: Sequence[tuple[str, ...]], *, max_tokens: int | None = None, truncate: bool = False
    ) -> list[ModelInput | InputError]:
        """``prepare`` for many texts or pairs, tokenized together."""
        limit = min(limit for limit in (max_tokens, self.positions) if limit is not None)

        def prepare(text: tuple[str, ...], encoded: Encoded | None) -> ModelInput | InputError:
            if encoded is None or max(map(len, text)) > MOST_CHARACTERS:
                return self._prepare_or_refuse(text, max_tokens, truncate)
            return self.label(encoded.tokens, encoded.notes)

        read = self.reader.read_all(texts, limit)
        return [prepare(*pair) for pair in zip(texts, read, strict=True)]

    def label(self, tokens: tuple[Token, ...], notes: tuple[str, ...]) -> ModelInput:
        """The ids of tokens as the encoder's input; a pair is read as two segments."""
        device = self.encoder.embedding.weight.device  # at once, where ``self.device`` searches the module
        inputs = {"ids": torch.tensor([[token.id for token in tokens]], device=device)}  # [1, token]
        if self.encoder.config.segments > 1:
            inputs["segments"] = torch.tensor([[token.segment for token in tokens]], device=device)
        return ModelInput(inputs, text_axes(tokens), tokens, notes)

    def generate(
        self, prepared: ModelInput, count: int, *, temperature: float = 0.0, seed: int = 0
    ) -> ModelInput:
        """The text with up to ``count`` tokens more, if the encoder is causal."""
        if not self.encoder.config.causal:
            raise ModelError(f"{self.name} reads in both directions and does not write on: own-causal does")
        return super().generate(prepared, count, temperature=temperature, seed=seed)

    def next_scores(self, ids: Tensor) -> Tensor:
        """The logits of the token behind a text.  [1, token] -> [vocabulary]"""
        return self.encoder.logits(self.encoder(ids)[0, -1])

    @property
    def objective(self) -> Objective:
        """Masked tokens, or each next one of a causal encoder."""
        mask = None if self.encoder.config.causal else self.reader.tokenizer.token_to_id(MASK)
        return Objective("ids", mask, self.reader.vocabulary)

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """One pass: scores over the vocabulary.  [target], [target] -> [target, vocabulary]"""
        return self.encoder.logits(self.encoder(**prepared.inputs)[copies, at])


def load_own(name: str, *, device: torch.device, dtype: torch.dtype | None = None) -> OwnModel:
    """Load ``own``, ``own-causal`` or a folder that attnscope saved; float32 unless ``dtype`` says otherwise.

    As long as a bundled encoder has no trained weights it is built from a fixed seed, and its notes say
    ``untrained``. Raises ``ModelError``.
    """
    folder: str | Path = PRETRAINED / name if name in BUNDLED else name
    if name in BUNDLED and not (PRETRAINED / name / WEIGHTS).is_file():
        encoder, tokenizer = untrained(0, name)
    else:
        with explained(f"loading {name}"):
            encoder, tokenizer = load_encoder(folder)
    notes = [] if encoder.config.trained else ["untrained: the weights are random, drawn from a fixed seed"]
    return OwnModel(name, encoder.to(device=device, dtype=dtype), tokenizer, notes)
