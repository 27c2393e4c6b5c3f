"""The own encoder as a ``Model``: bundled with the package, or a folder that attnscope saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from attnscope.attention import Axis, Kind
from attnscope.models.model import Model, Prepared
from attnscope.models.reading import Reader
from attnscope.network import Encoder, load, untrained
from attnscope.network.folder import BUNDLED, PRETRAINED, WEIGHTS


class OwnModel(Model):
    """The own encoder with its tokenizer."""

    def __init__(self, name: str, module: Encoder, tokenizer: Tokenizer, notes: Sequence[str] = ()) -> None:
        super().__init__(name, module, module.config.max_positions, notes)
        self.reader = Reader(tokenizer)
        self.segmented = module.config.segments > 1

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> Prepared:
        """The inputs and labelled axes of a text, or of a pair that the model reads as two segments."""
        ids, tokens = self.reader.read(text, second)
        keep, notes = self._fit(len(ids), max_tokens=max_tokens, truncate=truncate)
        if keep is not None:
            ids, tokens = self.reader.read(text, second, keep)
        inputs = {"ids": torch.tensor([ids], device=self.device)}  # [1, token]
        if self.segmented:
            inputs["segments"] = torch.tensor([[token.segment for token in tokens]], device=self.device)
        axes: dict[Kind, tuple[Axis, Axis]] = {"encoder": (tokens, tokens), "decoder": (tokens, tokens)}
        return Prepared(inputs, axes, tokens, notes)


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
