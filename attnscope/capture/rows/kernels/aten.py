"""The kernels behind ``scaled_dot_product_attention``, where a module calls ``torch.ops.aten`` itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.rows.capture import Capture, Unknown
from attnscope.capture.rows.kernels.sdpa import sdpa_call

KERNELS = frozenset(
    {
        "scaled_dot_product_attention",
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
    }
)
"""Those whose queries, keys and values are [batch, head, position, size]."""

PACKED = frozenset({"_flash_attention_forward", "_efficient_attention_forward"})
"""Those that are given texts one behind the other, in an order of their own."""


def capture_aten(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Capture | Unknown:
    """The attention of one call, proved by the first thing that it returned."""
    if name in PACKED:
        return Unknown(f"it calls torch.ops.aten.{name}, whose texts are packed, and which is not read")
    schema = getattr(torch.ops.aten, name).default._schema
    given = dict(zip((each.name for each in schema.arguments), args, strict=False)) | dict(kwargs)
    given.setdefault("attn_mask", given.pop("attn_bias", None))
    call = sdpa_call((), given, len(given["query"]))
    output: Tensor = result if isinstance(result, Tensor) else result[0]
    capture = Capture.of_call(call, name.lstrip("_"))
    return capture if call.dropout else capture.proved(call.value, output)
