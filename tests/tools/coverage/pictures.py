"""Whether each axis of a picture's maps is named when the product reads a picture with this model."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import ViTImageProcessor

from attnscope.attention import Attention
from attnscope.errors import AttnscopeError
from attnscope.models.huggingface.model import HuggingFaceModel
from tests.models.images import save_noise
from tests.tools.coverage.shrink import attribute
from tests.tools.survey import describe_error

FREE = (192, 256)  # rows and columns of a picture for a model that takes any: its last axes stay grids


class Reader(HuggingFaceModel):
    """Reads pictures as ``show`` does, without the question what else mixes tokens: ``audits`` asks that."""

    def note_seal(self, prepared: Any, record: Any) -> Any:
        return record


class AxisObserver:
    """Counts maps by their axes: ``named``, numbered ``queries`` of a decoder, or ``numbered`` otherwise."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def observe(self, attention: Attention) -> None:
        """Count one call; a single position needs no name."""
        queries, keys = (
            len(axis) == 1 or not isinstance(axis, range) for axis in (attention.queries, attention.keys)
        )
        learned = attention.site.kind == "decoder" or (attention.site.kind == "cross" and keys)
        self.counts["named" if queries and keys else "queries" if learned else "numbered"] += 1


def count_axes(module: nn.Module, given: dict[str, Any]) -> tuple[dict[str, int], str]:
    """The maps of a picture alone by their axes, or what is said in their place."""
    pixels = given.get("pixel_values")
    if not isinstance(pixels, Tensor) or pixels.ndim != 4 or pixels.shape[1] != 3:
        return {}, ""
    fixed = attribute(module.config, "image_size", "img_size", "input_size") is not None
    high, wide = pixels.shape[2:] if fixed else FREE
    processor = ViTImageProcessor(size={"height": high, "width": wide})
    model, seen = Reader("it", module, None, (), None, lambda what: processor, None), AxisObserver()
    try:
        with tempfile.TemporaryDirectory() as folder:
            prepared = model.prepare_image([save_noise(Path(folder) / "a.png", high, wide)])
        model.run(prepared, [seen])
    except AttnscopeError as error:
        return {}, str(error)
    except Exception as error:  # a row of the table, not the end of it
        return {}, describe_error(error)
    return dict(seen.counts), ""
