"""Attention between the texts of a batch is named, however it is computed, and never shown as tokens'."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertAttention

from attnscope import record as record_block
from attnscope.capture import recording
from attnscope.capture.placing.between import ACROSS, PERHAPS
from attnscope.capture.record import Record
from attnscope.models.seal import Seal
from tests.capture.modules import FunctionModule
from tests.capture.observing import observe
from tests.capture.placing.mixing_modules import COUNT, SIZE, STATES

ORDER = torch.tensor([3, 1, 0, 6, 2, 4, 5])


def bert_attention(**options):
    """Attention of transformers, which goes through its attention functions."""
    config = BertConfig(hidden_size=SIZE, num_attention_heads=2, attn_implementation="sdpa", **options)
    return BertAttention(config, is_causal=False, is_cross_attention=config.is_decoder)


def written(m, x):
    q, k, v = m.qkv(x).chunk(3, -1)
    return (q @ k.mT).softmax(-1) @ v


def by_the_kernel(m, x):
    return F.scaled_dot_product_attention(*m.qkv(x)[:, None].chunk(3, -1))[:, 0]


def positions_first(m, x):
    return m.inner(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1)


def multihead(run, **options):
    return FunctionModule(run, inner=nn.MultiheadAttention(SIZE, 2, **options))


WAYS = {  # how people attend along the first axis but one
    "written": lambda: FunctionModule(written, qkv=nn.Linear(SIZE, 3 * SIZE)),
    "kernel": lambda: FunctionModule(by_the_kernel, qkv=nn.Linear(SIZE, 3 * SIZE)),
    "fused module": lambda: multihead(lambda m, x: m.inner(x, x, x)[0], batch_first=True),
    "positions first in a module": lambda: multihead(positions_first),
    "fused layer": lambda: nn.TransformerEncoderLayer(SIZE, 2, 8, batch_first=True),
    "function of transformers": lambda: FunctionModule(lambda m, x: m.inner(x)[0], inner=bert_attention()),
}


def in_a_table(m, x):
    """Cells look at each other, and at the same cell of other rows."""
    x = x + m.cells(x)
    return x + m.rows(x.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("way", WAYS)
def test_attention_between_texts_is_named_beside_token_attention(way):
    record, maps, _ = observe(FunctionModule(in_a_table, cells=WAYS[way](), rows=WAYS[way]()), STATES)
    assert [(layer.name.partition(".")[0], layer.reason) for layer in record.without_attention] == [
        ("rows", ACROSS)
    ]
    assert [(kept.site.name.partition(".")[0], tuple(kept.weights.shape[-2:])) for kept in maps] == [
        ("cells", (COUNT, COUNT))
    ]


def rows_alone(m, x):
    return x + m.rows(x.transpose(0, 1)).transpose(0, 1)


def rows_before_cells(m, x):
    x = rows_alone(m, x)
    return x + m.cells(x)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("run", [rows_alone, rows_before_cells])
@pytest.mark.parametrize("labelled", [False, True])
def test_attention_between_texts_is_named_with_batch_first(way, run, labelled):
    """Labels say so; without them positions may come first, which attention behind it makes unlikely."""
    model, axis = FunctionModule(run, rows=WAYS[way](), cells=WAYS[way]()).eval(), range(COUNT)
    axes = {"encoder": (axis, axis)} if labelled else None
    with torch.inference_mode(), recording(model, axes=axes, warn=False) as record:
        model(STATES)
    shown = [site.site.name.partition(".")[0] for site in record.sites]
    assert shown == ["rows"] * (not labelled) + ["cells"] * (run is rows_before_cells)
    assert [layer.reason for layer in record.without_attention] == [ACROSS] * labelled
    doubted = [note for note in record.notes if note.startswith(PERHAPS.partition("{")[0])]
    assert doubted == record.changes
    followed = way != "function of transformers"  # behind whose first call none is followed, in this order
    assert len(doubted) == (not labelled and followed and run is rows_before_cells)


@pytest.mark.parametrize("texts", [1, 3])
def test_labels_that_fit_the_first_axis_alone_put_positions_first(texts):
    torch.manual_seed(0)
    model, states = nn.MultiheadAttention(8, 2), torch.randn(5, texts, 8)
    block = FunctionModule(lambda m, x: m.inner(x, x, x)[0], inner=model).eval()
    with record_block(block, list("abcde")) as run, torch.inference_mode():
        block(states)
    shown = run.head("L0H1") if texts == 1 else run.part(2).head("L0H1")
    with torch.inference_mode():
        _, expected = model(*[states] * 3, average_attn_weights=False)  # [text, head, query, key]
    np.testing.assert_allclose(shown.weights, expected[-1, 1].numpy(), atol=1e-6)
    assert list(shown.keys) == list("abcde")


def test_sealed_model_still_names_attention_between_texts():
    record = Record()
    record.name("rows", ACROSS)
    record.name("other", "it takes no part")
    Seal().note(record, nn.Identity())
    assert [layer.reason for layer in record.without_attention] == [ACROSS]


def in_two_orders(run, make):
    """Maps of two models of the same weights: one in another order, and one in order."""
    for order in (ORDER, torch.arange(COUNT)):
        torch.manual_seed(0)
        yield observe(FunctionModule(run, first=make(), second=make(), order=order), STATES)[1]


def elsewhere(m, x):
    """Attention in another order than was given, as by windows, backwards or by rank."""
    x = x[:, m.order]
    x = x + m.first(x)
    return x + m.second(x)


@pytest.mark.parametrize("way", WAYS)
def test_reordered_tokens_are_placed_in_input_order(way):
    placed, plain = in_two_orders(elsewhere, WAYS[way])
    assert not torch.allclose(plain[0].weights[..., ORDER, :], plain[0].weights, atol=1e-3)
    for mine, theirs in zip(placed, plain, strict=True):
        torch.testing.assert_close(mine.weights, theirs.weights, atol=1e-6, rtol=0)


def to_keys_in_another_order(m, x):
    return m.first(x, encoder_hidden_states=x[:, m.order])[0]


def test_reordered_keys_are_placed_in_input_order():
    (placed,), (plain,) = in_two_orders(to_keys_in_another_order, partial(bert_attention, is_decoder=True))
    torch.testing.assert_close(placed.weights, plain.weights, atol=1e-6, rtol=0)


PUT_BACK = {
    "index_add": lambda rows, order: torch.zeros_like(rows).index_add(0, order, rows),
    "index_add_": lambda rows, order: torch.zeros_like(rows).index_add_(0, order, rows),
    "index_copy": lambda rows, order: torch.zeros_like(rows).index_copy(0, order, rows),
    "scatter": lambda rows, order: torch.zeros_like(rows).scatter(0, order[:, None].expand_as(rows), rows),
}


@pytest.mark.parametrize("way", PUT_BACK)
def test_queries_put_back_in_their_order_attend_between_tokens(way):
    def by_experts(m, x):
        query, key, value = m.qkv(x).chunk(3, -1)
        rows = query.reshape(-1, SIZE)
        order = torch.arange(len(rows)).flip(0)  # as experts sort what they are given
        query = PUT_BACK[way](rows[order], order).view_as(query)
        return F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]

    model = FunctionModule(by_experts, qkv=nn.Linear(SIZE, 3 * SIZE))
    record, (kept,), _ = observe(model, STATES)
    assert record.without_attention == []
    query, key, _ = model.qkv(STATES).detach().chunk(3, -1)
    true = (query @ key.mT / SIZE**0.5).softmax(-1)
    torch.testing.assert_close(kept.weights[:, 0], true)
