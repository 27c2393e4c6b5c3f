"""The own encoder as a ``Model``: bundled with the package, or a folder that attnscope saved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from attnscope.attention import Axis, Kind
from attnscope.errors import ModelError
from attnscope.models.model import Model, Prepared
from attnscope.models.tokens import tokens_of
from attnscope.network import Encoder, bundled, load, untrained
from attnscope.network.folder import BUNDLED


class OwnModel(Model):
    """The own encoder with its tokenizer."""

    def __init__(self, name: str, module: Encoder, tokenizer: Tokenizer, notes: Sequence[str] = ()) -> None:
        super().__init__(name, module, module.config.max_positions, notes)
        self.tokenizer = tokenizer
        self.segmented = module.config.segments > 1

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> Prepared:
        """The inputs and labelled axes of a text, or of a pair that the model reads as two segments."""
        encoding = self.tokenizer.encode(text, second)
        keep, notes = self._fit(len(encoding.ids), max_tokens=max_tokens, truncate=truncate)
        if keep is not None:
            self.tokenizer.enable_truncation(keep)
            encoding = self.tokenizer.encode(text, second)
            self.tokenizer.no_truncation()
        tokens = tokens_of(encoding, [text] if second is None else [text, second])
        inputs = {"ids": torch.tensor([encoding.ids], device=self.device)}  # [1, token]
        if self.segmented:
            inputs["segments"] = torch.tensor([encoding.type_ids], device=self.device)
        axes: dict[Kind, tuple[Axis, Axis]] = {"encoder": (tokens, tokens), "decoder": (tokens, tokens)}
        return Prepared(inputs, axes, tokens, notes)


def load_own(name: str, *, device: torch.device, dtype: torch.dtype | None = None) -> OwnModel:
    """Load ``own``, ``own-causal`` or a folder that attnscope saved; float32 unless ``dtype`` says otherwise.

    As long as a bundled encoder has no trained weights it is built from a fixed seed, and its notes say
    ``untrained``. Raises ``ModelError``.
    """
    if name in BUNDLED:
        try:
            encoder, tokenizer = load(bundled(name))
        except ModelError:
            encoder, tokenizer = untrained(0, name)
    else:
        encoder, tokenizer = load(name)
    notes = [] if encoder.config.trained else ["untrained: the weights are random, drawn from a fixed seed"]
    return OwnModel(name, encoder.to(device=device, dtype=dtype), tokenizer, notes)
