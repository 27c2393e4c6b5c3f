"""A training run on disk: weights, moments and progress in one safetensors file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope.errors import ModelError
from attnscope.network.encoder import Encoder
from attnscope.storage.arrays.files import read_safetensors
from attnscope.storage.whole import write_whole
from attnscope.training.optimizer import Both

MOMENTS = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")


@dataclass
class Progress:
    """Where a run stands: what is shown, and, with the weights, what it resumes from.

    ``loss`` is a running mean over the training steps, ``held_out`` holds pairs of a step and a loss, both in
    nats a token; ``tokens`` counts those that went in.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    loss: float = math.nan
    held_out: list[tuple[int, float]] = field(default_factory=list)


def save_checkpoint(path: Path, encoder: Encoder, optimizer: Both, progress: Progress) -> None:
    """Weights, moments and progress in one safetensors file, that appears whole or not at all."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for name, parameter in encoder.named_parameters():
        tensors[f"weights.{name}"] = parameter.detach().cpu().contiguous()
        for key, value in optimizer.state(parameter).items():
            tensors[f"{key}.{name}"] = value.detach().cpu().contiguous()
    metadata = {"progress": json.dumps(asdict(progress)), "config": json.dumps(encoder.config.as_dict())}
    write_whole(path, save(tensors, metadata=metadata))


def load_checkpoint(path: Path, encoder: Encoder, optimizer: Both) -> Progress:
    """Bring encoder and optimizer back to where ``save_checkpoint`` left them.

    Raises ``ModelError`` if there is nothing to resume, or the checkpoint is of another shape.
    """
    if not path.is_file():
        raise ModelError(f"there is nothing to resume: {path} does not exist")
    try:
        tensors, metadata = read_safetensors(path)
        progress: dict[str, Any] = json.loads(metadata["progress"])
        config = json.loads(metadata["config"])
    except Exception as error:
        raise ModelError(f"{path} cannot be read as a checkpoint: {error}") from error
    wanted = encoder.config.as_dict()
    for name, value in wanted.items():
        if config.get(name) != value:
            raise ModelError(f"{path} was made with {name} {config.get(name)}, not {value}: resume with that")
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            parameter.copy_(tensors[f"weights.{name}"])
            kept = {
                key: tensors[f"{key}.{name}"].to(parameter.device)
                for key in MOMENTS
                if f"{key}.{name}" in tensors
            }
            optimizer.state(parameter).update(kept)
    progress["held_out"] = [(step, loss) for step, loss in progress["held_out"]]
    return Progress(**progress)
