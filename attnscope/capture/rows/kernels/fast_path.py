"""The attention inside of torch's fused encoder layers, from the arguments of the fused functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.capture.hooks.modules import Call
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.kernels.projection import bind, project
from attnscope.capture.rows.proof import compare_rows
from attnscope.capture.rows.scores import ScoredRows

# fmt: off
LAYER = (
    "src", "embed_dim", "num_heads", "in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias",
    "use_gelu", "norm_first", "eps", "norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias",
    "linear1_weight", "linear1_bias", "linear2_weight", "linear2_bias", "mask", "mask_type",
)
ATTENTION = (
    "query", "key", "value", "embed_dim", "num_heads", "in_proj_weight", "in_proj_bias", "out_proj_weight",
    "out_proj_bias", "mask", "need_weights", "average_attn_weights", "mask_type",
)
# fmt: on
"""The arguments of the two functions, in their order."""


@torch.no_grad()
def capture_fast_path(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any, calls: Sequence[Call]
) -> tuple[Capture, str]:
    """The attention of one of the two functions, and the path of the module that would have computed it."""
    if name == "_native_multi_head_attention":
        given = dict(zip(ATTENTION, args, strict=False)) | kwargs
        return _capture_attention(given, result, calls), calls[-1].name
    given = dict(zip(LAYER, args, strict=False)) | kwargs
    return _capture_layer(given, result, calls), f"{calls[-1].name}.self_attn".lstrip(".")


def _capture_attention(given: Mapping[str, Any], result: Any, calls: Sequence[Call]) -> Capture:
    """Attention that ran alone, proved by what it returned."""
    texts = _Texts.of(given["query"], calls)

    def finish(mixed: Tensor, rows: Sequence[int]) -> Tensor:
        return _project_out(given, mixed)

    return _capture("native_multi_head_attention", given, texts, texts.states, result[0], finish)


def _capture_layer(given: Mapping[str, Any], result: Any, calls: Sequence[Call]) -> Capture:
    """Attention inside of a whole layer, proved by the layer's output."""
    texts = _Texts.of(given["src"], calls)
    first = given["norm_first"]

    def finish(mixed: Tensor, rows: Sequence[int]) -> Tensor:
        states = texts.states[:, list(rows)] + _project_out(given, mixed)  # [batch, row, size]
        if first:
            return states + _feed_forward(given, _norm(given, states, 2))
        states = _norm(given, states, 1)
        return _norm(given, states + _feed_forward(given, states), 2)

    states = _norm(given, texts.states, 1) if first else texts.states
    return _capture("transformer_encoder_layer_fwd", given, texts, states, result, finish)


@dataclass(frozen=True, eq=False)
class _Texts:
    """States of texts, padded to one length, and which positions are real; None where all may be."""

    states: Tensor  # [batch, position, size]
    real: Tensor | None = None  # bool, [batch, position]

    @staticmethod
    def of(states: Tensor, calls: Sequence[Call]) -> _Texts:
        """Nested states are padded as long as the texts that the modules around them were given."""
        if not states.is_nested:
            return _Texts(states)
        lengths = torch.tensor([len(text) for text in states.unbind()], device=states.device)
        around = (call.first for call in reversed(calls))
        length = next((int(first.shape[1]) for first in around if first is not None), int(lengths.max()))
        real = torch.arange(length, device=states.device) < lengths[:, None]
        padded = states.to_padded_tensor(0.0, (len(lengths), length, states.size(2)))
        return _Texts(padded, real)

    def open_rows(self, start: int, stop: int) -> Tensor:
        """Padded positions neither look nor are looked at.  -> [batch, 1, row, key]"""
        assert self.real is not None
        return (self.real[:, start:stop, None] & self.real[:, None])[:, None]

    def pad(self, output: Tensor) -> Tensor:
        """An output with no number at padded positions, up to the end of the longest text."""
        if self.real is None:
            return output
        longest = int(self.real.sum(1).max())
        padded: Tensor = output.to_padded_tensor(math.nan, (len(self.real), longest, output.size(2)))
        return padded


def _capture(
    kernel: str,
    given: Mapping[str, Any],
    texts: _Texts,
    states: Tensor,
    output: Tensor,
    finish: Callable[[Tensor, Sequence[int]], Tensor],
) -> Capture:
    """Attention over ``states``, [batch, position, size], where True in a mask says masked."""
    mask = None if given["mask"] is None else given["mask"].bool()
    padding = given["mask_type"] == 1
    inputs = [states.transpose(0, 1)] * 3
    known = [given[name] for name in ("embed_dim", "num_heads", "in_proj_weight", "in_proj_bias")]
    rest = [None, None, False, 0.0, given["out_proj_weight"], given["out_proj_bias"]]
    masks = {"key_padding_mask": mask if padding else None, "attn_mask": None if padding else mask}
    call = project(bind([*inputs, *known, *rest], masks))
    if texts.real is not None:
        call = replace(call, masks=(*call.masks, texts.open_rows))
    difference = compare_rows(ScoredRows(call), call.value, texts.pad(output)[:, None], finish)
    return replace(Capture.of_call(call, kernel), crossed=False, difference=difference)


def _project_out(given: Mapping[str, Any], mixed: Tensor) -> Tensor:
    """[batch, head, row, size] -> [batch, row, size]"""
    weight: Tensor = given["out_proj_weight"]
    return F.linear(mixed.transpose(1, 2).flatten(2).to(weight.dtype), weight, given["out_proj_bias"])


def _norm(given: Mapping[str, Any], states: Tensor, number: int) -> Tensor:
    weight, bias = given[f"norm{number}_weight"], given[f"norm{number}_bias"]
    return F.layer_norm(states, weight.shape, weight, bias, given["eps"])


def _feed_forward(given: Mapping[str, Any], states: Tensor) -> Tensor:
    inner = F.linear(states, given["linear1_weight"], given["linear1_bias"])
    inner = F.gelu(inner) if given["use_gelu"] else F.relu(inner)
    return F.linear(inner, given["linear2_weight"], given["linear2_bias"])
