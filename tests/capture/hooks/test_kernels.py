"""Attention functions that show nothing of their inside: flash, flex and other people's."""

import pytest
import torch
import transformers as hf
from transformers.modeling_utils import AttentionInterface

from attnscope.capture import Keep, recording
from tests.capture.tiny import FAMILIES


def reference_flash(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **options):
    """What flash attention computes, written out: padding, causality from the end, window, cap, sinks."""
    queries, keys = query.shape[2], key.shape[2]
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT * scaling
    if options.get("softcap"):
        scores = (scores / options["softcap"]).tanh() * options["softcap"]
    row = torch.arange(queries)[:, None] + keys - queries
    place = torch.arange(keys)[None]
    opened = place <= row if module.is_causal else torch.ones(queries, keys, dtype=torch.bool)
    if options.get("sliding_window") is not None:
        opened = opened & ((row - place).abs() < options["sliding_window"])
    opened = opened.expand(query.shape[0], 1, -1, -1)
    if attention_mask is not None:
        opened = (
            opened & attention_mask[:, None, None, :].bool() & attention_mask[:, None, -queries:, None].bool()
        )
    powers = (scores.exp() * opened).double()
    total = powers.sum(-1, keepdim=True)
    if options.get("s_aux") is not None:
        total = total + options["s_aux"].double().exp()[None, :, None, None]
    weights = torch.where(total > 0, powers / total, 0.0).float()
    reference_flash.seen.append(weights)
    return (weights @ value).transpose(1, 2).contiguous(), None


@pytest.fixture
def flash(monkeypatch):
    """The reference in the place of the flash kernel, its weights gathered in a list."""
    reference_flash.seen = []
    mapping = dict(AttentionInterface._global_mapping, flash_attention_2=reference_flash)
    monkeypatch.setattr(AttentionInterface, "_global_mapping", mapping)
    return reference_flash.seen


def run(model, **given):
    """Every head of a pass.  -> (record, maps)"""
    keep = Keep(lambda site: range(4))
    with torch.inference_mode(), recording(model, [keep]) as record:
        model(**given)
    return record, keep.maps


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss", "bert"])
@pytest.mark.parametrize("padded", [True, False])
def test_flash_attention_is_recomputed_as_it_masks(flash, family, padded):
    model = FAMILIES[family].build()
    model.config._attn_implementation = "flash_attention_2"
    mask = torch.ones(2, 9, dtype=torch.long)
    if padded:
        mask[0, :3] = 0
    record, maps = run(model, input_ids=torch.randint(4, 99, (2, 9)), attention_mask=mask)
    assert {site.kernel for site in record.sites} == {"flash_attention_2"}
    assert record.without_attention == []
    for kept, weights in zip(maps, flash, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)
        assert not weights[~kept.allowed.expand_as(weights)].any()
    if family in ("mistral", "gpt-oss", "gemma2"):
        assert 4 in {site.window for site in record.sites}


def test_a_cached_flash_step_counts_from_the_end(flash):
    model = FAMILIES["mistral"].build()
    model.config._attn_implementation = "flash_attention_2"
    ids = torch.randint(4, 99, (1, 8))
    keep = Keep(lambda site: range(4))
    with torch.inference_mode(), recording(model, [keep]):
        cache = model(input_ids=ids[:, :5], use_cache=True).past_key_values
        model(input_ids=ids[:, 5:], past_key_values=cache, use_cache=True)
    for kept, weights in zip(keep.maps, flash, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)


def test_a_function_that_is_no_softmax_of_products_is_a_hole():
    def linear(module, query, key, value, attention_mask, scaling=None, **options):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        return ((query.relu() @ key.relu().mT) @ value).transpose(1, 2).contiguous(), None

    AttentionInterface._global_mapping["relu_attention"] = linear
    try:
        model = FAMILIES["llama"].build()
        model.config._attn_implementation = "relu_attention"
        record, maps = run(model, input_ids=torch.randint(4, 99, (1, 9)))
    finally:
        del AttentionInterface._global_mapping["relu_attention"]
    assert (record.sites, maps) == ([], [])
    assert [layer.layer for layer in record.without_attention] == [0, 1, 2]
    assert "'relu_attention' computes no softmax" in record.without_attention[0].reason


def test_another_function_that_follows_the_formula_is_recomputed():
    def named(module, query, key, value, attention_mask, scaling=None, **options):
        powers = (query @ key.repeat_interleave(2, 1).mT * scaling).exp().tril()
        weights = powers / powers.sum(-1, keepdim=True)
        named.seen.append(weights)
        return (weights @ value.repeat_interleave(2, 1)).transpose(1, 2).contiguous(), None

    named.seen = []
    AttentionInterface._global_mapping["by_hand"] = named
    try:
        model = FAMILIES["llama"].build()
        model.config._attn_implementation = "by_hand"
        record, maps = run(model, input_ids=torch.randint(4, 99, (1, 9)))
    finally:
        del AttentionInterface._global_mapping["by_hand"]
    for kept, weights in zip(maps, named.seen, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)
    assert {(site.source, site.kernel) for site in record.sites} == {("recomputed", "by_hand")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_flex_attention_is_recomputed_with_its_block_mask(family):
    config = FAMILIES[family].config()
    eager = FAMILIES[family].build("eager")
    model = (
        getattr(hf, FAMILIES[family].model)._from_config(config, attn_implementation="flex_attention").eval()
    )
    model.load_state_dict(eager.state_dict())
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    given = {"input_ids": torch.randint(4, 99, (2, 9)), "attention_mask": mask}
    with torch.compiler.set_stance("force_eager"):  # the same arithmetic, without minutes of compilation
        record, maps = run(model, **given)
    with torch.inference_mode():
        own = eager(**given, output_attentions=True).attentions
    assert record.without_attention == []
    assert {(site.source, site.kernel) for site in record.sites} == {("recomputed", "flex_attention")}
    for kept, weights in zip(maps, own, strict=True):
        alive = kept.allowed.any(-1, keepdim=True)
        torch.testing.assert_close(kept.weights * alive, weights * alive, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_weights_that_meet_other_values_a_second_time_are_shown_once(kernel):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    config = hf.DiffLlamaConfig(vocab_size=9, num_attention_heads=4, num_key_value_heads=4, **sizes)
    model = hf.DiffLlamaModel._from_config(config, attn_implementation=kernel).eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.arange(6)[None])
    assert [site.site.layer for site in record.sites] == [0, 1]
    assert all(site.difference < 1e-5 for site in record.sites)
