"""What a feature extractor makes of a sound, as the processor of its type asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import InputError, ModelError, first_line
from attnscope.memory import require
from attnscope.models.foreign import bounded
from attnscope.models.inspection import takes
from attnscope.storage.sound import Sound

CONVOLVED = 3
"""Times that the numbers behind the first convolution are held at once: before and after their norm."""


class Features(NamedTuple):
    """What a model may be given of a sound, by name; the first ``heard`` steps of it are no padding."""

    fields: Mapping[str, Any]
    heard: int | None  # if the extractor says it


def extract_features(name: str, extractor: Any, config: Any, path: Path, sound: Sound) -> Features:
    """The features of the sound in ``path``.

    Raises ``InputError`` for a sound that the extractor refuses, or cuts into pieces.
    """
    try:
        with bounded(f"what the feature extractor of {name} makes of {path}"):
            fields = ask_extractor(extractor, config, sound)
        mask = fields.get("attention_mask")
        heard = None if mask is None else int(mask[0].sum())
    except ModelError:
        raise
    except Exception as error:
        raise InputError(f"the feature extractor of {name} refuses {path}: {first_line(error)}") from error
    for values in fields.values():
        if isinstance(values, Tensor) and not bool(torch.isfinite(values).all()):
            raise InputError(f"the feature extractor of {name} makes what is no number of {path}")
    pieces = 1 if mask is None else len(mask)
    if pieces > 1:
        raise InputError(
            f"{name} cuts {path} into {pieces} pieces that it hears apart: choose a part with --from-second "
            "and --to-second"
        )
    return Features(fields, heard)


def require_room(name: str, module: nn.Module, sound: Sound) -> None:
    """Raise ``SizeError`` if the first convolution over the samples would not fit the memory."""
    first = next((part for part in module.modules() if isinstance(part, nn.Conv1d)), None)
    if first is not None and first.in_channels == 1:
        steps = len(sound.samples) // first.stride[0]
        size = CONVOLVED * steps * first.out_channels * first.weight.element_size()
        what = f"{sound.seconds:.0f} seconds of sound in {name}"
        require(size, what, "choose a part with --from-second and --to-second")


def ask_extractor(extractor: Any, config: Any, sound: Sound) -> dict[str, Any]:
    """What an extractor makes of a sound, asked as the processor of its type asks it."""
    how = {**_settings(extractor, config), "sampling_rate": sound.rate, "return_tensors": "pt"}
    return dict(extractor(sound.samples, **how))


def _settings(extractor: Any, config: Any) -> Mapping[str, Any]:
    """What the processor of a type asks its extractor for: a mask wherever that has one of its own accord."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    masks = getattr(extractor, "return_attention_mask", True) is not False
    asked = {"return_attention_mask": True} if masks else {}
    named = getattr(PROCESSOR_MAPPING.get(type(config), None), "audio_kwargs", None)
    both = asked | (dict(named) if isinstance(named, Mapping) else {})
    return {setting: value for setting, value in both.items() if takes(extractor.__call__, setting)}
