"""Text that transformers itself generates, with its cache of keys, recorded step by step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Site, Token
from attnscope.capture import Record, Steps, recording
from attnscope.models.inputs import ModelInput, text_axes
from attnscope.models.inspection import hears
from attnscope.models.text.generation import Sampling
from attnscope.progress import tell


def generate_cached(
    writer: Any,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    side: str,
    count: int,
    sampling: Sampling,
    ends: Collection[int],
) -> tuple[list[int], Steps | None, Record]:
    """Let ``writer``, a model with its language-model head, generate up to ``count`` tokens.

    ``inputs[side]`` are the tokens to go on from, ``module`` is what is watched. One token more than
    ``count`` is generated and dropped, so that the last one that counts is read too and has its row. No
    ``Steps`` come from a model that reads the whole text again at every step.
    """
    from transformers import GenerationConfig, GenerationMixin

    steps = Steps()
    drawn = {"temperature": sampling.temperature, "top_k": 0, "top_p": 1.0} if sampling.temperature else {}
    config = GenerationConfig(
        max_new_tokens=count + 1, do_sample=sampling.temperature > 0, num_beams=1, **drawn
    )
    device = inputs[side].device
    with (
        torch.inference_mode(),
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        recording(module, [steps], warn=False) as record,
    ):
        torch.manual_seed(sampling.seed)
        # what hears has a loop of its own, over pieces of the sound, that brings no steps
        generate = partial(GenerationMixin.generate, writer) if hears(writer) else writer.generate
        whole = generate(**inputs, generation_config=config, streamer=_Written(count))  # [1, token]
    new = whole[0, inputs[side].shape[1] :].tolist()
    new = new[:-1] if len(new) > count or new[-1] in ends else new
    return new, steps if _is_cached(record) else None, record


@dataclass
class _Written:
    """What transformers hands each token to, and the prompt before them: it tells how many there are."""

    count: int
    so_far: int = -1

    def put(self, ids: Tensor) -> None:
        """Take the prompt, or the next token."""
        self.so_far += 1
        if 0 < self.so_far <= self.count:
            tell("token", self.so_far, self.count)

    def end(self) -> None:
        """Take the end of the text."""


def extend_input(prepared: ModelInput, side: str, new: Tensor, whole: tuple[Token, ...]) -> ModelInput:
    """The input with the tokens that were written, ``new`` ``[1, token]``, which end ``whole``.

    ``side`` names the ids that they follow. Of one text, every input with a number for each token grows too.
    """
    inputs, count = dict(prepared.inputs), prepared.inputs[side].shape[1]
    two_sided = side != "input_ids"
    for name, tensor in inputs.items():
        if name == side or (not two_sided and is_row(tensor, count)):
            more = new if name == side else tensor[:, -1:].expand(-1, new.shape[1])
            inputs[name] = torch.cat([tensor, more.to(tensor.dtype)], 1)
    axes = dict(prepared.axes)
    axes |= {
        kind: (whole, whole)
        for kind in text_axes(whole)
        if kind == "decoder" or (kind in axes and not two_sided)
    }
    if "cross" in axes:
        axes["cross"] = whole, axes["cross"][1]
    tokens = prepared.tokens if two_sided else whole
    return replace(prepared, inputs=inputs, axes=axes, tokens=tokens, written=count)


def is_row(tensor: Tensor, tokens: int) -> bool:
    """Whether a tensor has a number for each token of one text, [1, token]; pixels have not."""
    return tensor.ndim == 2 and tensor.shape[1] == tokens


def _is_cached(record: Record) -> bool:
    """Whether every step but a site's first one brought one query."""
    met: set[Site] = set()
    for layer in record.sites:
        if layer.site in met and layer.queries > 1:
            return False
        met.add(layer.site)
    return True
