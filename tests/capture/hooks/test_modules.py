"""Attention in modules of any author, captured without changes to them."""

from dataclasses import asdict
from functools import partial

import pytest
import torch
from torch import nn

from attnscope.capture import recording
from tests.capture import modules
from tests.capture.observing import MapObserver, observe


def prove(module, *given, **options):
    """Run a module under a recording that proves all weights.  -> (record, kept maps, output)"""
    record, maps, output = observe(module, *given, **options)
    assert all(site.difference is not None and site.difference < 1e-5 for site in record.sites)
    return record, maps, output


def batch_times_head(m, x, context):
    """Weights [batch·head, query, key], queries from one sequence, keys and values from another."""
    q, k, v = (
        part.unflatten(-1, (4, -1)).transpose(1, 2).flatten(0, 1)
        for part in (m.q(x), m.k(context), m.v(context))
    )
    weights = torch.softmax(torch.baddbmm(torch.zeros(1), q, k.mT, beta=0, alpha=0.5), dim=-1)
    mixed = torch.bmm(weights, v).unflatten(0, (-1, 4))
    return mixed.transpose(1, 2).flatten(2), weights.unflatten(0, (-1, 4))


def no_attention(m, x):
    """Softmaxes of a router, a soft mixture over parameters, a dynamic convolution and an output head."""
    gates = m.router(x).softmax(-1)
    best, chosen = gates.topk(2, dim=-1)
    for index, expert in enumerate(m.experts):
        share = (best * (chosen == index)).sum(-1, keepdim=True)
        x = x + share * expert(x)
    x = x + torch.softmax(m.router(x), -1) @ m.prototypes
    x = x + torch.softmax(x, dim=-1) * x
    kernels = (m.router(x) * 2).view(-1, 4, 1).softmax(1)
    x = x + torch.bmm(x.unsqueeze(-1).expand(-1, -1, -1, 4).flatten(0, 1), kernels).view(x.shape)
    return m.head(x).softmax(-1)


def in_blocks(m, x):
    """Attention within two blocks of a sequence, written with dots in the equation or with matmul."""
    q, k, v = (t.reshape(2, 2, 3, 4, -1) for t in m.qkv(x).chunk(3, -1))
    weights = torch.einsum("...qhd,...khd->...hqk", q, k).softmax(-1)  # [batch, block, head, query, key]
    mixed = torch.einsum("...hqk,...khd->...qhd", weights, v) if m.einsum else weights @ v.transpose(2, 3)
    whole = weights.new_zeros(2, 4, 6, 6)
    whole[..., :3, :3], whole[..., 3:, 3:] = weights.unbind(1)
    return mixed, whole


def made_of(run, *names, **parts):
    """A function that makes a model of linear layers and other parts."""
    return lambda: modules.FunctionModule(run, **{name: nn.Linear(16, 16) for name in names}, **parts)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def noise(*shapes):
    return [torch.randn(shape) for shape in shapes]


PAST = torch.ones(5, 5).tril().bool()
CAUSAL, FOUR = {"kind": "decoder", "offset": 0}, {"kind": "encoder", "batch": 2, "heads": 4}
BETWEEN = {"kind": "cross", "offset": None, "queries": 5, "keys": 7}
SOFTMAXED = [partial(modules.Softmaxed, call) for call in modules.SOFTMAXES.values()]
BLOCKED = [made_of(in_blocks, qkv=nn.Linear(16, 48), einsum=einsum) for einsum in (True, False)]
LINEAR = made_of(batch_times_head, *"qkv")
WRITTEN = [  # a module, its inputs, and what the record says
    *((made, [*noise((2, 5, 16)), PAST], CAUSAL | {"source": "softmax", "name": ""}) for made in SOFTMAXED),
    (modules.Fused, noise((2, 5, 16)), CAUSAL | {"kernel": "sdpa"}),
    (modules.ListedHeads, noise((2, 5, 16)), FOUR | {"name": "heads"}),
    *((modules.SequenceFirst, [*noise((5, n, 16)), PAST], CAUSAL | {"batch": n}) for n in (1, 2, 5)),
    *((LINEAR, noise((n, 5, 16), (n, 7, 16)), BETWEEN | {"batch": n}) for n in (1, 2, 5)),
    *((blocked, noise((2, 6, 16)), FOUR) for blocked in BLOCKED),
]


@pytest.mark.parametrize(("made", "given", "expected"), WRITTEN)
def test_hand_written_attention_is_exact(made, given, expected):
    record, (kept,), (_, weights) = prove(made(), *given)
    (site,) = record.sites
    assert expected.items() <= (asdict(site) | asdict(site.site)).items()
    torch.testing.assert_close(kept.weights, weights, atol=0 if site.source == "softmax" else 1e-6, rtol=0)
    assert torch.equal(kept.allowed.expand_as(weights), weights > 0)


@pytest.mark.parametrize(("stages", "layers"), [(0, 3), (2, 4)])
def test_single_head_layers_in_a_list_stay_layers(stages, layers):
    module = modules.ListedLayers(layers=layers // (stages or 1), stages=stages)
    record, maps, (_, weights) = prove(module, torch.randn(2, 5, 16))
    assert [site.site.layer for site in record.sites] == list(range(layers))
    for kept, own in zip(maps, weights, strict=True):
        assert torch.equal(kept.weights[:, 0], own)


def test_routers_and_output_heads_are_not_attention():
    experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
    parts = {"prototypes": nn.Parameter(torch.randn(4, 16)), "head": nn.Linear(16, 9)}
    model = modules.FunctionModule(no_attention, router=nn.Linear(16, 4), experts=experts, **parts)
    record, *_ = prove(model, torch.randn(2, 5, 16))
    assert record.sites == []


MASK = nn.Transformer.generate_square_subsequent_mask(5)
RAGGED = torch.arange(5) >= torch.tensor([[3], [5]])
MULTIHEAD = {  # options of nn.MultiheadAttention, and how it is called
    "plain": ({}, {}),
    "no weights asked": ({}, {"need_weights": False}),
    "bias_k and zero key": ({"add_bias_kv": True, "add_zero_attn": True}, {}),
    "no bias": ({"bias": False}, {}),
    "causal": ({}, {"attn_mask": MASK}),
    "causal by hint": ({}, {"attn_mask": MASK, "is_causal": True, "need_weights": False}),
    "boolean mask": ({}, {"attn_mask": MASK < 0}),
    "a mask a head": ({}, {"attn_mask": torch.randn(8, 5, 5)}),
    "padding": ({}, {"key_padding_mask": RAGGED}),
    "padding, extra keys": ({"add_bias_kv": True}, {"key_padding_mask": RAGGED, "attn_mask": MASK < 0}),
    "averaged": ({}, {"average_attn_weights": True}),
}


@pytest.mark.parametrize("name", MULTIHEAD)
@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_multihead_attention_is_exact(name, batch_first):
    made, called = MULTIHEAD[name]
    layer = nn.MultiheadAttention(16, 4, batch_first=batch_first, **made).eval()
    x = torch.randn(2, 5, 16) if batch_first else torch.randn(5, 2, 16)
    asked = {**called, "need_weights": True, "average_attn_weights": False}
    with torch.inference_mode():
        _, weights = layer(x, x, x, **asked)
    record, (kept,), _ = prove(layer, x, x, x, **called)
    torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)
    assert record.sites[0].kernel in ("multi_head_attention_forward", "native_multi_head_attention")
    opened = weights > 0
    if name.startswith("padding"):
        opened &= ~RAGGED[:, None, :, None]
    assert torch.equal(kept.allowed.expand_as(weights), opened)


def test_unbatched_multihead_attention_with_other_key_size():
    layer = nn.MultiheadAttention(16, 4, kdim=6, vdim=10).eval()
    q, k, v = torch.randn(5, 16), torch.randn(7, 6), torch.randn(7, 10)
    with torch.inference_mode():
        _, weights = layer(q, k, v, average_attn_weights=False)
    record, (kept,), _ = prove(layer, q, k, v)
    torch.testing.assert_close(kept.weights[0], weights, atol=1e-6, rtol=0)
    assert record.sites[0].site.kind == "cross"


def test_torch_transformer_has_three_attention_kinds():
    model = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)
    mask = model.generate_square_subsequent_mask(6)
    given = torch.randn(2, 6, 16), torch.randn(2, 6, 16)
    record, *_ = prove(model, *given, tgt_mask=mask, tgt_is_causal=True)
    parts = {"decoder": "self_attn", "cross": "multihead_attn"}
    assert [(s.site.kind, s.site.layer, s.site.name) for s in record.sites] == [
        *(("encoder", layer, f"encoder.layers.{layer}.self_attn") for layer in (0, 1)),
        *((kind, n, f"decoder.layers.{n}.{part}") for n in (0, 1) for kind, part in parts.items()),
    ]


def test_labels_apply_to_axes_of_equal_length():
    labels = {"decoder": (tuple("abcde"), tuple("abcde")), "encoder": (tuple("xy"), tuple("xy"))}
    keep = MapObserver()
    module = modules.Fused()
    with torch.inference_mode(), recording(module, [keep], labels):
        module(torch.randn(1, 5, 16))
        module(torch.randn(1, 4, 16))
    assert [kept.queries for kept in keep.maps] == [tuple("abcde"), range(4)]


LOWEST = torch.finfo(torch.float32).min
CLOSED = {-torch.inf: -46000, LOWEST: -46000, -1e9: -46000, -1e5: -36000, -1e4: -4000}
"""What a mask writes, and the lowest score of the first head that it still closes."""
FAR = {
    "filled": lambda scores, later, closed: scores.masked_fill(later, closed).softmax(-1),
    "added": lambda scores, later, closed: torch.softmax(scores + torch.where(later, closed, 0.0), -1),
    "unknown": lambda scores, later, closed: scores.clamp(max=1e9).masked_fill(later, closed).softmax(-1),
}


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("way", FAR)
def test_keys_are_masked_by_mask_not_by_low_scores(way, closed):
    """Scores of the first head are low and far apart; ``unknown`` hides that they are products."""
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)

    def attend(self, q, k, v):
        q, k = q.double().clone(), k.double().clone()
        q[:, 0], k[:, 0] = 1, CLOSED[closed] * torch.linspace(1, 0.2, 6)[:, None]
        return FAR[way](q @ k.mT / 4, later, closed).to(v) @ v

    with torch.no_grad():
        model = modules.blocks(lambda: modules.Heads(attend))
        _, maps, _ = observe(model, torch.randn(2, 6, 16))
    for kept in maps:
        assert torch.equal(kept.allowed.expand(2, 4, 6, 6), ~later.expand(2, 4, 6, 6))
