"""What each attention was added to, over the families."""

import pytest
import torch
from torch import nn

from attnscope.capture import recording
from attnscope.capture.residuals import Residuals
from tests.capture.test_projections import ALL
from tests.capture.tiny import inputs

NORMED = {"bert", "albert", "deberta-v2", "roberta", "distilbert", "bart", "marian"}
AS_IT_IS = {"gpt2", "llama", "mistral", "qwen2", "gpt-oss", "t5", "vit", "bloom", "modernbert"}
NOT_FOUND = {"gemma2", "falcon", "gpt-neox", "phi"}
"""A norm between attention and sum, or attention and feed-forward added at once."""


@pytest.mark.parametrize("name", sorted(NORMED | AS_IT_IS | NOT_FOUND))
def test_the_sum_of_residual_and_attention_is_found_with_the_norm_behind_it(name):
    family = ALL[name]
    torch.manual_seed(0)
    model = family.build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    residuals = Residuals()
    with torch.inference_mode(), residuals.watching(model), recording(model, [residuals]):
        model(**inputs(family.inputs))
    found = [residuals.of(site) for site in residuals.sites]
    if name in NOT_FOUND:
        assert found == [None] * len(found)
        return
    assert None not in found
    for each in found:
        assert (each.scale is not None) == (name in NORMED)
        assert each.before.shape == each.result.shape
