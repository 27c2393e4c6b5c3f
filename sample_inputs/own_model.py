"""A model of your own: attnscope shows any torch module, without a change to it.

attnscope show "The cat sat on the mat." -m sample_inputs/own_model.py:OwnModel
attnscope info sample_inputs/own_model.py:OwnModel --audit
"""

import torch
from torch import Tensor, nn


class OwnModel(nn.Module):
    """Two layers of attention, with random weights, and a blur of neighbours, which ``--audit`` finds."""

    def __init__(self, vocabulary: int = 8192, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(vocabulary, width)
        self.blur = nn.Conv1d(width, width, 3, padding=1)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """[batch, token] -> [batch, token, width]"""
        vectors = self.embed(ids)
        blurred = self.blur(vectors.mT).mT
        states: Tensor = self.layers(vectors + blurred)
        return states
