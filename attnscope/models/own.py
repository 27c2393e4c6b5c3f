"""The own encoder as a ``Model``: bundled with the package, or a folder that attnscope saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from attnscope.attention import Axis, Kind, Token
from attnscope.errors import InputError, ModelError
from attnscope.models.generation import Drawing, account, opened, written
from attnscope.models.inputs import ModelInput, Objective
from attnscope.models.model import Model
from attnscope.models.reader import Reader
from attnscope.network import Encoder, load, untrained
from attnscope.network.folder import BUNDLED, PRETRAINED, WEIGHTS
from attnscope.network.tokenizer import MASK


class OwnModel(Model):
    """The own encoder with its tokenizer."""

    stateless = True

    def __init__(self, name: str, module: Encoder, tokenizer: Tokenizer, notes: Sequence[str] = ()) -> None:
        super().__init__(name, module, module.config.max_positions, notes)
        self.reader = Reader(tokenizer)
        self.segmented = module.config.segments > 1

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """The inputs and labelled axes of a text, or of a pair that the model reads as two segments."""
        ids, tokens = self.reader.read(text, second)
        keep, notes = self._fit(len(ids), max_tokens=max_tokens, truncate=truncate)
        if keep is not None:
            ids, tokens = self.reader.read(text, second, keep)
        return self._prepared(ids, tokens, notes)

    def prepare_all(
        self, texts: Sequence[str], *, max_tokens: int | None = None, truncate: bool = False
    ) -> list[ModelInput | InputError]:
        """``prepare`` for many texts, tokenized together."""
        limit = min(limit for limit in (max_tokens, self.positions) if limit is not None)

        def prepared(text: str, ids: list[int], tokens: tuple[Token, ...]) -> ModelInput | InputError:
            if len(ids) > limit:
                return self._prepare_or_refuse(text, max_tokens, truncate)
            return self._prepared(ids, tokens, ())

        return [
            prepared(text, *reading) for text, reading in zip(texts, self.reader.read_all(texts), strict=True)
        ]

    def generate(
        self, prepared: ModelInput, count: int, *, temperature: float = 0.0, seed: int = 0
    ) -> ModelInput:
        """The text with up to ``count`` tokens written on. It keeps no cache: one pass shows them all."""
        encoder: Encoder = self.module  # type: ignore[assignment]
        if not encoder.config.causal:
            raise ModelError(f"{self.name} reads in both directions and does not write on: own-causal does")
        drawing, ends = Drawing(temperature, seed), self.reader.ends
        tokens, notes = opened(prepared.tokens, ends)
        self._room(len(tokens), count)

        def scores(new: list[int]) -> torch.Tensor:
            ids = torch.tensor([[*(token.id for token in tokens), *new]], device=self.device)
            return encoder.logits(encoder(ids)[0, -1])

        with torch.inference_mode(), self.threads(prepared):
            new = written(scores, count, drawing, ends)
        whole = self.reader.vocabulary.continued(tokens, new)
        notes = (*prepared.notes, *notes, account(whole[len(tokens) :], len(tokens), count, drawing))
        return self._prepared([token.id for token in whole], whole, notes)

    @property
    def objective(self) -> Objective:
        """Hidden tokens, or each next one of a causal encoder."""
        encoder: Encoder = self.module  # type: ignore[assignment]
        mask = None if encoder.config.causal else self.reader.tokenizer.token_to_id(MASK)
        return Objective("ids", mask, self.reader.vocabulary)

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """One pass: scores over the vocabulary.  [target], [target] -> [target, vocabulary]"""
        encoder: Encoder = self.module  # type: ignore[assignment]
        return encoder.logits(encoder(**prepared.inputs)[copies, at])

    def _prepared(self, ids: list[int], tokens: tuple[Token, ...], notes: tuple[str, ...]) -> ModelInput:
        encoder: Encoder = self.module  # type: ignore[assignment]
        device = encoder.embedding.weight.device  # at once, where ``self.device`` searches the module
        inputs = {"ids": torch.tensor([ids], device=device)}  # [1, token]
        if self.segmented:
            inputs["segments"] = torch.tensor([[token.segment for token in tokens]], device=device)
        axes: dict[Kind, tuple[Axis, Axis]] = {"encoder": (tokens, tokens), "decoder": (tokens, tokens)}
        return ModelInput(inputs, axes, tokens, notes)


def load_own(name: str, *, device: torch.device, dtype: torch.dtype | None = None) -> OwnModel:
    """Load ``own``, ``own-causal`` or a folder that attnscope saved; float32 unless ``dtype`` says otherwise.

    As long as a bundled encoder has no trained weights it is built from a fixed seed, and its notes say
    ``untrained``. Raises ``ModelError``.
    """
    folder: str | Path = PRETRAINED / name if name in BUNDLED else name
    if name in BUNDLED and not (PRETRAINED / name / WEIGHTS).is_file():
        encoder, tokenizer = untrained(0, name)
    else:
        encoder, tokenizer = load(folder)
    notes = [] if encoder.config.trained else ["untrained: the weights are random, drawn from a fixed seed"]
    return OwnModel(name, encoder.to(device=device, dtype=dtype), tokenizer, notes)
