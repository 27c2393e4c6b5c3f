"""torchvision as far as processors need it: its part in Python, where the compiled one does not load.

Wheels are compiled for one build of torch. Processors of pictures call nothing that is compiled; importing
torchvision only wants the operators to be declared.
"""

import importlib.util
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
)
_declared: list[torch.library.Library] = []


@cache
def can_import_torchvision() -> bool:
    """Whether torchvision is there; after this it can be imported."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    with suppress(Exception):
        import torchvision  # noqa: F401

        return True
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    _declared.append(library)
    for operator in OPERATORS:
        library.define(operator)
    source = (Path(spec.origin).parent / "_meta_registrations.py").read_text(encoding="utf-8")
    named = set(re.findall(r'register_meta\("(\w+)"\)|torchvision::(\w+)', source))
    for name in {one or other for one, other in named} - {"nms", "roi_align"}:
        library.define(f"{name}(Tensor x) -> Tensor")
    return True
