"""How weights are moved: AdamW, or Muon for the matrices of the layers and AdamW for the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope.errors import ModelError
from attnscope.network.encoder import Encoder

BETAS = (0.9, 0.98)
NAMES = ("adamw", "muon")


class Both:
    """Two optimizers as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    def state(self, parameter: Tensor) -> dict[str, Any]:
        """What the optimizer that owns ``parameter`` remembers of it; empty before the first step."""
        for part in self.parts:
            if any(parameter is p for group in part.param_groups for p in group["params"]):
                state: dict[str, Any] = part.state[parameter]
                return state
        raise KeyError("no optimizer owns this parameter")

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Update all parameters."""
        for part in self.parts:
            part.step()


def optimizer_for(encoder: Encoder, name: str, rate: float, decay: float) -> Both:
    """AdamW (Loshchilov & Hutter 2019) that shrinks matrices, and leaves biases and norms alone.

    With ``muon`` the matrices of the layers are updated by Muon (Jordan et al. 2024) instead, scaled so that
    one learning rate serves both.
    """
    muon = name == "muon"
    if muon and not hasattr(torch.optim, "Muon"):
        raise ModelError(f"muon needs torch 2.9 or later, and this is {torch.__version__}: choose adamw")
    layers: list[Tensor] = []
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []
    for name, parameter in encoder.named_parameters():
        if parameter.dim() < 2:
            vectors.append(parameter)
        else:
            (layers if muon and name.startswith("layers.") else matrices).append(parameter)
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)
    if not muon:
        return Both(adam)
    return Both(adam, torch.optim.Muon(layers, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
