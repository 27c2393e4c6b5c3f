"""Attention in modules of any make, found without a change to them."""

import pytest
import torch
from torch import nn

from attnscope.capture import Keep, recording
from tests.capture import modules


def observe(module, *given, heads=range(4), **options):
    """Run a module under a recording that proves all weights.  -> (record, kept maps, output)"""
    keep = Keep(lambda site: heads)
    with torch.inference_mode(), recording(module.eval(), [keep]) as record:
        output = module(*given, **options)
    assert all(site.difference is not None and site.difference < 1e-5 for site in record.sites)
    return record, keep.maps, output


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("call", modules.SOFTMAXES)
def test_every_way_to_call_softmax_is_seen(call):
    mask = torch.ones(5, 5).tril().bool()
    record, (kept,), (_, weights) = observe(
        modules.Softmaxed(modules.SOFTMAXES[call]), torch.randn(2, 5, 16), mask
    )
    assert torch.equal(kept.weights, weights)
    assert torch.equal(kept.allowed.expand(2, 4, 5, 5), mask.expand(2, 4, 5, 5))
    assert (record.sites[0].source, record.sites[0].site.kind) == ("softmax", "decoder")
    assert record.sites[0].site.name == ""


def test_a_fused_causal_block():
    record, (kept,), (_, weights) = observe(modules.Fused(), torch.randn(2, 5, 16))
    torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)
    assert (record.sites[0].kernel, record.sites[0].site.kind) == ("sdpa", "decoder")


def test_listed_heads_are_the_heads_of_one_layer():
    record, (kept,), (_, weights) = observe(nn.Sequential(modules.ListedHeads()), torch.randn(2, 5, 16))
    assert torch.equal(kept.weights, weights)
    (site,) = record.sites
    assert (site.site.name, site.heads, site.site.kind) == ("0.heads", 4, "encoder")


@pytest.mark.parametrize(("made", "layers"), [(modules.ListedLayers, 3), (modules.NestedLists, 4)])
def test_listed_layers_of_one_head_stay_layers(made, layers):
    record, maps, (_, weights) = observe(made(), torch.randn(2, 5, 16), heads=[0])
    assert [site.site.layer for site in record.sites] == list(range(layers))
    for kept, own in zip(maps, weights, strict=True):
        assert torch.equal(kept.weights[:, 0], own)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_scores_that_put_the_batch_last(batch):
    mask = torch.ones(5, 5).tril().bool()
    _, (kept,), (_, weights) = observe(modules.SequenceFirst(), torch.randn(5, batch, 16), mask)
    assert torch.equal(kept.weights, weights)
    assert torch.equal(kept.allowed.expand(batch, 4, 5, 5), mask.expand(batch, 4, 5, 5))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batch_times_head_from_one_sequence_to_another(batch):
    given = torch.randn(batch, 5, 16), torch.randn(batch, 7, 16)
    record, (kept,), (_, weights) = observe(modules.BatchTimesHead(), *given)
    assert torch.equal(kept.weights, weights)
    (site,) = record.sites
    assert (site.site.kind, site.offset, site.queries, site.keys) == ("cross", None, 5, 7)


@pytest.mark.parametrize("spelling", ["einsum", "matmul"])
def test_five_axes_are_groups_of_heads(spelling):
    record, (kept,), (_, weights) = observe(modules.GroupedByAxis(spelling), torch.randn(2, 6, 16))
    assert torch.equal(kept.weights, weights)
    assert (record.sites[0].batch, record.sites[0].heads) == (2, 4)


@pytest.mark.parametrize("spelling", ["einsum", "matmul"])
@pytest.mark.parametrize("made", [modules.Blocked, modules.HeadedBlocks])
def test_five_axes_are_blocks_of_text_at_their_places(made, spelling):
    record, (kept,), (_, weights) = observe(made(spelling), torch.randn(2, 6, 16))
    first, second = weights.unflatten(0, (2, 2)).unbind(1)
    expected = torch.zeros(2, 4, 6, 6)
    expected[..., :3, :3], expected[..., 3:, 3:] = first, second
    assert torch.equal(kept.weights, expected)
    assert torch.equal(kept.allowed.expand_as(expected), expected > 0)
    assert (record.sites[0].batch, record.sites[0].heads) == (2, 4)


def test_additive_attention_scores_by_a_linear_layer():
    given = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    record, (kept,), (_, weights) = observe(modules.Additive(), *given, heads=[0])
    assert torch.equal(kept.weights, weights)
    assert record.sites[0].site.kind == "cross"


def test_the_same_weights_over_two_halves_of_the_values_are_one_map():
    record, *_ = observe(modules.Twice(), torch.randn(2, 5, 16))
    assert len(record.sites) == 1


def test_routers_and_output_heads_are_no_attention():
    record, *_ = observe(modules.NotAttention(), torch.randn(2, 5, 16))
    assert record.sites == []


def mha_options():
    """Options of nn.MultiheadAttention, and how it is called."""
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    ragged = torch.zeros(2, 5, dtype=torch.bool)
    ragged[0, 3:] = True
    yield "plain", {}, {}
    yield "no weights asked", {}, {"need_weights": False}
    yield "bias_k and zero key", {"add_bias_kv": True, "add_zero_attn": True}, {}
    yield "no bias", {"bias": False}, {}
    yield "causal", {}, {"attn_mask": causal}
    yield "causal by hint", {}, {"attn_mask": causal, "is_causal": True, "need_weights": False}
    yield "boolean mask", {}, {"attn_mask": causal < 0}
    yield "a mask a head", {}, {"attn_mask": torch.randn(8, 5, 5)}
    yield "padding", {}, {"key_padding_mask": ragged}
    yield (
        "padding, causal, extra keys",
        {"add_bias_kv": True},
        {"key_padding_mask": ragged, "attn_mask": causal < 0},
    )
    yield "averaged", {}, {"average_attn_weights": True}


@pytest.mark.parametrize(
    ("made", "called"), [case[1:] for case in mha_options()], ids=[c[0] for c in mha_options()]
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_of_torch(made, called, batch_first):
    layer = nn.MultiheadAttention(16, 4, batch_first=batch_first, **made).eval()
    x = torch.randn(2, 5, 16) if batch_first else torch.randn(5, 2, 16)
    asked = {**called, "need_weights": True, "average_attn_weights": False}
    with torch.inference_mode():
        _, weights = layer(x, x, x, **asked)
    record, (kept,), _ = observe(layer, x, x, x, **called)
    torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)
    assert record.sites[0].kernel in ("multi_head_attention_forward", "native_multi_head_attention")
    assert torch.equal(kept.allowed.expand_as(weights), weights > 0)


def test_multihead_attention_with_other_key_sizes_unbatched():
    layer = nn.MultiheadAttention(16, 4, kdim=6, vdim=10).eval()
    q, k, v = torch.randn(5, 16), torch.randn(7, 6), torch.randn(7, 10)
    with torch.inference_mode():
        _, weights = layer(q, k, v, average_attn_weights=False)
    record, (kept,), _ = observe(layer, q, k, v)
    torch.testing.assert_close(kept.weights[0], weights, atol=1e-6, rtol=0)
    assert record.sites[0].site.kind == "cross"


def test_transformer_of_torch_has_three_kinds():
    model = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)
    mask = model.generate_square_subsequent_mask(6)
    given = torch.randn(2, 6, 16), torch.randn(2, 6, 16)
    record, _, output = observe(model, *given, tgt_mask=mask, tgt_is_causal=True)
    assert [(s.site.kind, s.site.layer, s.site.name) for s in record.sites] == [
        ("encoder", 0, "encoder.layers.0.self_attn"),
        ("encoder", 1, "encoder.layers.1.self_attn"),
        ("decoder", 0, "decoder.layers.0.self_attn"),
        ("cross", 0, "decoder.layers.0.multihead_attn"),
        ("decoder", 1, "decoder.layers.1.self_attn"),
        ("cross", 1, "decoder.layers.1.multihead_attn"),
    ]
    with torch.inference_mode():
        torch.testing.assert_close(
            model(*given, tgt_mask=mask, tgt_is_causal=True), output, atol=1e-5, rtol=0
        )


def test_labels_go_where_the_lengths_agree():
    labels = {"decoder": (tuple("abcde"), tuple("abcde")), "encoder": (tuple("xy"), tuple("xy"))}
    keep = Keep(lambda site: [0])
    module = modules.Fused()
    with torch.inference_mode(), recording(module, [keep], labels):
        module(torch.randn(1, 5, 16))
        module(torch.randn(1, 4, 16))
    assert [kept.queries for kept in keep.maps] == [tuple("abcde"), range(4)]
