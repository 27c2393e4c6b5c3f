"""Attention in windows and sorted chunks, against the modules' own outputs for unit values.

The output is linear in the values. With a unit vector as the value of each key, it is the row of weights
itself, whatever the layout of the weights inside the module.
"""

from contextlib import ExitStack

import pytest
import torch

from attnscope.capture import recording
from attnscope.capture.placing import chunked
from attnscope.capture.record import FunctionObserver
from attnscope.questions.sentences import note_unproved
from tests.capture.observing import check_parts, observe
from tests.capture.tiny import tiny

HEADS, SIZE, LENGTH = 2, 24, 16
SIZES = {"vocab_size": 99, "hidden_size": HEADS * SIZE, "num_attention_heads": HEADS, "num_hidden_layers": 2}
SIDE = {"layers": 2, "attention_heads": HEADS, "ffn_dim": 16}
SIDES = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIDE.items()}
SIDES |= {"vocab_size": 99, "d_model": HEADS * SIZE}
REFORMER = {
    **{"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "attn_layers": ["local", "lsh"]},
    **{"axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 16], "attention_head_size": SIZE},
    **{"hidden_size": 32, "num_buckets": 4, "feed_forward_size": 16, "hash_seed": 5, "is_decoder": True},
}
longformer = tiny(
    "Longformer", **SIZES, intermediate_size=16, attention_window=[4, 8], max_position_embeddings=40
).build
led = tiny("LED", **SIDES, attention_window=4, max_encoder_position_embeddings=40).build
pegasus_x = tiny("PegasusX", **SIDES, block_size=4, num_global_tokens=3, max_position_embeddings=40).build
reformer = tiny("Reformer", **SIZES | REFORMER, use_cache=False).build


def texts(length=LENGTH, chosen=False):
    """Two texts, the second of which is padded; ``chosen``: some of their tokens are global."""
    ids = torch.randint(5, 99, (2, length), generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["attention_mask"][1, length - 3 :] = 0
    if chosen:
        given["global_attention_mask"] = torch.zeros_like(ids)
        given["global_attention_mask"][[0, 0, 1], [0, 7, 3]] = 1
    return given


TARGET = {"decoder_input_ids": texts()["input_ids"][:, :5]}
CASES = {
    "longformer": (longformer, texts()),
    "longformer with global tokens": (longformer, texts(chosen=True)),
    "longformer, padded by itself": (longformer, texts(13, chosen=True)),
    "led with global tokens": (led, texts(chosen=True) | TARGET),
}


def in_windows(record):
    """The calls in windows of a pass."""
    return [site for site in record.sites if site.kernel in chunked.WINDOWED]


def unit_rows(model, given, module):
    """What a module does with unit values, as a map.  -> [batch, head, query, key]"""
    rows, units = [], torch.eye(SIZE)[:LENGTH].repeat(2, 1, HEADS)  # [batch, key, head · size]

    def unit(linear, args, output):
        return units.transpose(0, 1) if output.shape[:2] == (LENGTH, 2) else units

    with ExitStack() as hooks, torch.inference_mode():
        for name in ("value", "value_global"):
            hooks.enter_context(getattr(module, name).register_forward_hook(unit))
        hooks.enter_context(module.register_forward_hook(lambda _, args, output: rows.append(output[0])))
        model(**given)
    return rows[0].unflatten(-1, (HEADS, SIZE)).transpose(1, 2)


@pytest.mark.parametrize("name", CASES)
def test_chunked_weights_stand_at_true_keys_and_reproduce_outputs(name):
    make, given = CASES[name]
    model, count = make(), given["input_ids"].shape[1]
    record, kept, _ = observe(model, **given)
    maps = {each.site.name: each for each in kept}
    assert len(in_windows(record)) == 2
    for site in in_windows(record):
        assert (site.site.kind, site.batch, site.heads, site.keys) == ("encoder", 2, HEADS, count)
        assert site.unproved is None
        assert site.difference < 1e-6
        kept, truth = maps[site.site.name], unit_rows(model, given, model.get_submodule(site.site.name))
        assert not truth[:, :, :count, count:].any()
        truth, alive = truth[:, :, :count, :count], kept.allowed.any(-1, keepdim=True)
        torch.testing.assert_close(kept.weights, truth, atol=1e-6, rtol=0)
        assert kept.weights.std() > 0.01
        assert torch.equal(kept.allowed.expand_as(truth), (truth > 0) & alive)


def beside_theirs(put):
    return lambda weights, keys, *more: put(weights, keys.roll(1, -1), *more)


def turned_where_tokens_are_global(put):
    """These rows are proved by values of their own."""
    return lambda weights, *more: put(weights if weights.shape[2] == LENGTH else weights.flip(-1), *more)


WRONG = [("longformer", beside_theirs)]
WRONG += [
    ("longformer with global tokens", wrong) for wrong in (beside_theirs, turned_where_tokens_are_global)
]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_chunked_weights_at_wrong_keys_are_reported(name, wrong, monkeypatch):
    make, given = CASES[name]
    monkeypatch.setattr(chunked, "place_part", wrong(chunked.place_part))
    assert all(site.differs for site in in_windows(observe(make(), **given)[0]))


def test_weights_and_values_of_different_dtypes_are_unproved():
    site, _ = observe(longformer().bfloat16(), **texts())[0].sites  # its softmax is single
    assert site.difference is None
    assert "no single product of all weights and values" in site.unproved
    assert note_unproved([site]) == [f"not proved in layer 0: {site.unproved}"]


def test_chunked_rows_of_some_heads_equal_full_map():
    make, given = CASES["longformer with global tokens"]
    with torch.inference_mode(), recording(model := make(), [FunctionObserver(check_parts)]) as record:
        model(**given)
    assert (len(record.sites), record.failures) == (2, [])


@pytest.mark.parametrize(
    ("make", "given"), [(reformer, texts()), (reformer, texts(4)), (pegasus_x, texts() | TARGET)]
)
def test_unfollowed_chunks_are_named(make, given):
    record, *_ = observe(make(), **given)
    assert not in_windows(record)
    assert ["attends in chunks" in layer.reason for layer in record.without_attention] == [True] * 2
