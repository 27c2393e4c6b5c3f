"""Tiny matrices gain nothing from several threads, and lose much where others want the cores too."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
