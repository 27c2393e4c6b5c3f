"""Random models whose rows of attention differ: a comparison of even rows could not fail."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture import Record, recording
from tests.capture.observing import CapturedMap, MapObserver

CLOSE = 1e-5


def run(model: Any, given: dict[str, Any], **options: Any) -> tuple[Any, Record, list[CapturedMap]]:
    keep = MapObserver()
    torch.manual_seed(3)
    with torch.inference_mode(), recording(model, [keep]) as record:
        output = model(**given, **options)
    return output, record, keep.maps


def is_flat(kept: CapturedMap) -> bool:
    """Whether every row gives all its keys the same weight, which several wrong ways would give, too."""
    even = kept.allowed / kept.allowed.sum(-1, keepdim=True).clamp(min=1)
    return bool(((kept.weights - even).abs() <= CLOSE).all())


def liven(model: nn.Module, given: Mapping[str, Any]) -> None:
    """Give each matrix outputs of variance 1, in the order of a pass, if rows of a map are all even.

    That is layer-sequential unit variance (Mishkin and Matas, 2016), for outputs that vary less. Zeros that
    are no bias, such as learned queries and gates, become noise before it.
    """
    if not any(map(is_flat, run(model, given)[2])):
        return
    generator = torch.Generator().manual_seed(4)
    scaled = set[nn.Parameter]()

    def scale(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.ndim < 2 or weight in scaled:
            return None
        scaled.add(weight)
        deviation = float(output.float().std()) if isinstance(output, Tensor) else 0.0
        if not 0 < deviation < 1:
            return None
        weight.mul_(1 / deviation)
        return module.forward(*args, **kwargs)

    with torch.no_grad(), ExitStack() as stack:
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and not name.endswith("bias") and not bool(parameter.any()):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        for module in model.modules():
            if not [*module.children()]:
                stack.callback(module.register_forward_hook(scale, with_kwargs=True).remove)
        model(**given)
