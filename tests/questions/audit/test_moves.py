"""What is less than rounding: no layer that sums it, or spreads it over features of a token, is blamed."""

import torch
from torch import nn

from tests.questions.audit.tiny import audited

SIZE = 64


class Layer(nn.Linear):
    """A layer of each token alone."""


class Leak(nn.Module):
    """Adds to the last token a little of what two others hold, each in a feature of its own, and sums it."""

    def __init__(self, much, little):
        super().__init__()
        self.shares = nn.Buffer(torch.full((2, SIZE), little))
        self.shares[0, 0] = self.shares[1, 1] = much
        self.layer = Layer(SIZE, SIZE, bias=False)
        nn.init.constant_(self.layer.weight, 1 / SIZE)

    def forward(self, x):
        mixed = x.clone()
        mixed[:, -1] += (x[:, :2].abs().sum(-1, keepdim=True) * self.shares).sum(1)
        return self.layer(mixed)


class Leaking(nn.Module):
    """Attention, and a leak behind it."""

    def __init__(self, much, little):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.leak = nn.Embedding(99, SIZE), Leak(much, little)
        self.attend = nn.MultiheadAttention(SIZE, 4, batch_first=True)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.leak(x + self.attend(x, x, x, need_weights=False)[0])


def blamed(model):
    return [mixer.path for mixer in audited(model).mixers]


def test_a_layer_that_sums_what_was_less_than_rounding_mixes_nothing():
    assert blamed(Leaking(2e-6, 2e-6)) == []


def test_tokens_that_move_other_features_of_one_token_are_mixed_where_they_do():
    assert blamed(Leaking(1e-4, 1e-7)) == ["leak"]
