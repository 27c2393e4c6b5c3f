"""What each attention was added to, over the families."""

import pytest
import torch
import transformers as hf
from torch import nn

from attnscope.capture import recording
from attnscope.capture.projections import Residuals
from tests.capture.test_projections import ALL
from tests.capture.tiny import DECODER, Tiny, inputs

NORMED = {"bert", "albert", "deberta-v2", "roberta", "distilbert", "bart", "marian"}
AS_IT_IS = {"gpt2", "llama", "mistral", "qwen2", "gpt-oss", "t5", "vit", "bloom", "modernbert"}
ROTATED = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}
MORE = {
    "gptj": Tiny(lambda: hf.GPTJConfig(**ROTATED), "GPTJModel"),
    "codegen": Tiny(lambda: hf.CodeGenConfig(**ROTATED), "CodeGenModel"),
    "cohere": Tiny(lambda: hf.CohereConfig(**DECODER), "CohereModel"),
    "granite": Tiny(lambda: hf.GraniteConfig(**DECODER, residual_multiplier=0.5), "GraniteModel"),
}
AT_ONCE = {"falcon", "gpt-neox", "phi", "gptj", "codegen", "cohere"}
"""Attention and feed-forward are added at once."""
TAKEN = {"gemma2", "glm4", "olmo2"}
"""A norm takes what attention gives before it is added."""
NOT_FOUND = {"granite"}
"""What attention gives is multiplied before it is added."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(NORMED | AS_IT_IS | AT_ONCE | TAKEN | NOT_FOUND))
def test_the_sum_of_residual_and_attention_is_found_with_the_norm_behind_it(name, dtype):
    family = (ALL | MORE)[name]
    torch.manual_seed(0)
    model = family.build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    model.to(dtype)
    given = inputs(family.inputs)
    given = {key: each.to(dtype) if each.is_floating_point() else each for key, each in given.items()}
    residuals = Residuals()
    with torch.inference_mode(), residuals.watching(model), recording(model, [residuals]):
        model(**given)
    found = [residuals.of(site) for site in residuals.sites]
    if name in NOT_FOUND:
        assert found == [None] * len(found)
        return
    assert None not in found
    for each in found:
        assert (each.norm is not None) == (name in NORMED)
        assert (each.inner is not None) == (name in TAKEN)
        assert each.before.shape == each.result.shape


class _Scaled(nn.Module):
    """A block that adds something else than what its attention gives."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.mix, self.after = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.after(x + self.mix(self.attention(x, x, x)[0]))


def test_what_is_not_the_sum_is_not_taken_for_it():
    torch.manual_seed(0)
    model, residuals = nn.Sequential(_Scaled(), _Scaled()).eval(), Residuals()
    nn.init.normal_(model[0].mix.weight, std=1e-3)  # so that the sum is nearly the residual alone
    with torch.inference_mode(), residuals.watching(model), recording(model, [residuals]):
        model(100 * torch.randn(1, 5, 16))
    assert len(residuals.found) == 2
    assert not residuals.residuals
