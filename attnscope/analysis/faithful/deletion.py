"""Copies of a text or an image without some of its tokens, and what a model makes of a prediction then."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attnscope.axes.weights import Array
from attnscope.errors import InputError, ModelError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.classifier import Classifier
from attnscope.models.inspection import accepts
from attnscope.models.predictions import BATCH_TOKENS
from attnscope.models.target import Prediction, score_prediction
from attnscope.progress import tell


@dataclass(frozen=True, eq=False)
class Deletion:
    """A prediction, and the tokens that can be taken away from what it is made of.

    ``places`` are their numbers, ``said`` what stands in the place of one that is taken away.
    """

    model: Model
    prepared: ModelInput
    prediction: Prediction
    places: tuple[int, ...]
    said: str
    _without: Callable[[Tensor], ModelInput]  # of [copy, token], bool: which are kept

    def shares(self, kept: Array) -> Array:
        """The probability of the prediction where only some places are kept.  [copy, place] -> [copy]"""
        wanted = torch.ones(len(kept), len(self.prepared.tokens), dtype=torch.bool)
        wanted[:, list(self.places)] = torch.from_numpy(np.ascontiguousarray(kept))
        size, found = max(1, BATCH_TOKENS // len(self.prepared.tokens)), []
        with torch.inference_mode(), self.model.threads(self.prepared):
            for start in range(0, len(wanted), size):
                found.append(self._ask(wanted[start : start + size].to(self.model.device)))
                tell("text", min(start + size, len(wanted)), len(wanted))
        return np.concatenate(found)

    def _ask(self, kept: Tensor) -> Array:
        """[copy, token] -> [copy]"""
        copied, chosen = self._without(kept), self.prediction.chosen
        copies = torch.arange(len(kept), device=kept.device)
        at = self.prediction.at
        if isinstance(self.model, Classifier):
            scores = self.model.class_scores(copied)
            scores = scores if at is None else scores[:, at]
        else:
            assert at is not None
            scores = self.model.logits(copied, copies, torch.full_like(copies, at))
        shares: Array = scores.float().softmax(-1)[:, chosen].double().cpu().numpy()
        return shares


def reads_across(prepared: ModelInput) -> bool:
    """Whether a decoder reads beside an encoder: tokens of the encoder's text can be taken away."""
    return "decoder_input_ids" in prepared.inputs


def open_deletion(model: Model, prepared: ModelInput, target: str | None) -> Deletion:
    """What can be taken away from what a prediction is made of: all but special tokens, and where it is read.

    Raises ``ModelError`` for a model without predictions or in which no token can be left out, and
    ``InputError`` for a text with fewer than two tokens that can.
    """
    crossed = reads_across(prepared)
    if crossed and "input_ids" not in prepared.inputs:
        raise ModelError(f"the encoder of {model.name} reads no text: --faithful takes tokens away from one")
    if len(prepared.axes) > 2 and not crossed:
        raise ModelError(f"{model.name} reads several texts: --faithful takes tokens away from one")
    with torch.no_grad():
        prediction = score_prediction(model, prepared, target)
    tokens = prepared.tokens
    places = [n for n, token in enumerate(tokens) if not token.special and (crossed or n != prediction.at)]
    if len(places) < 2:
        raise InputError("there are fewer than two tokens that can be taken away: give a longer text")
    said, without = _choose(model, prepared, places)
    return Deletion(model, prepared, prediction, tuple(places), said, without)


def _choose(
    model: Model, prepared: ModelInput, places: list[int]
) -> tuple[str, Callable[[Tensor], ModelInput]]:
    """What stands in the place of a token, in words, and what makes copies with it."""
    picture, inputs = prepared.picture, prepared.inputs
    if picture is not None and picture.grid is not None and len(places) == math.prod(picture.grid):
        return "its patch of the image is grey", lambda kept: _grey(prepared, kept[:, places])
    crossed = reads_across(prepared)  # then tokens of the encoder's text alone are taken away
    mask = None if picture is not None or crossed else _mask_token(model)
    where: str | int = "input_ids" if isinstance(model, Classifier) or crossed else model.objective.input
    if mask is not None:
        ids = inputs[where] if isinstance(where, str) else prepared.arguments[where]
        return "a mask token stands in its place", lambda kept: _copies(
            prepared, kept, {where: ids.expand(len(kept), -1).where(kept, mask)}
        )
    if isinstance(where, str) and accepts(model.module, "attention_mask"):
        return "no other token can look at it", lambda kept: _copies(
            prepared, kept, {"attention_mask": kept.to(inputs.get("attention_mask", kept).dtype)}
        )
    raise ModelError(
        f"no token can be left out of what {model.name} reads: it has no mask token and no attention mask"
    )


def _mask_token(model: Model) -> int | None:
    """The token that stands for one that is masked."""
    if isinstance(model, Classifier):
        mask: int | None = getattr(model.reader.tokenizer, "mask_token_id", None)
        return mask
    return model.objective.mask


def _copies(prepared: ModelInput, kept: Tensor, changed: Mapping[str | int, Tensor]) -> ModelInput:
    """As many copies of all tensors as there are rows, some of them changed."""
    given: list[tuple[str | int, Tensor]] = [*prepared.inputs.items(), *enumerate(prepared.arguments)]
    copied = {name: each.expand(len(kept), *each.shape[1:]) for name, each in given} | dict(changed)
    inputs = {name: each for name, each in copied.items() if isinstance(name, str)}
    arguments = tuple(copied[number] for number in range(len(prepared.arguments)))
    return replace(prepared, inputs=inputs, arguments=arguments, replay=None, figures=None, arrays=None)


def _grey(prepared: ModelInput, kept: Tensor) -> ModelInput:
    """Images with some patches grey, the mean of what the model was trained on.  [copy, patch]"""
    pixels = prepared.inputs["pixel_values"]
    assert prepared.picture is not None
    assert prepared.picture.grid is not None
    grid = kept.view(len(kept), 1, *prepared.picture.grid).float()  # [copy, 1, row, column]
    open_ = torch.nn.functional.interpolate(grid, size=pixels.shape[-2:], mode="nearest")
    return _copies(prepared, kept, {"pixel_values": pixels * open_.to(pixels.dtype)})
