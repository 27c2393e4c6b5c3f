"""Attention computed in windows, blocks and sorted chunks, against what the modules do with unit values.

The attention's output is linear in its values. With a unit vector for the value of each key, it is the row of
weights itself, however the module laid its weights out on the way.
"""

from dataclasses import dataclass

import pytest
import torch
import transformers as hf

from attnscope.capture import Keep, recording
from attnscope.capture.placing import chunked

HEADS, SIZE, LENGTH = 2, 24, 16
WIDTH = HEADS * SIZE


def units(first, count, batch):
    """Values that are unit vectors, the first at ``first``, for each head.  -> [batch, key, head · size]"""
    return torch.eye(SIZE)[first : first + count].repeat(batch, 1, HEADS)


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and the class of the modules that attend in pieces."""

    model: torch.nn.Module
    given: dict[str, torch.Tensor]
    attention: str

    def modules(self):
        return {n: m for n, m in self.model.named_modules() if type(m).__name__ == self.attention}


def texts(batch=2, length=LENGTH):
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1, length - 3 :] = 0
    return {"input_ids": torch.randint(5, 99, (batch, length), generator=generator), "attention_mask": mask}


def globally(given, name="global_attention_mask"):
    chosen = torch.zeros_like(given["input_ids"])
    chosen[0, [0, 7]] = 1
    chosen[1, 3] = 1
    return given | {name: chosen}


def longformer():
    torch.manual_seed(0)
    config = hf.LongformerConfig(
        vocab_size=99,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        intermediate_size=16,
        attention_window=[4, 8],
        max_position_embeddings=40,
    )
    return hf.LongformerModel(config).eval()


def led():
    torch.manual_seed(0)
    config = hf.LEDConfig(
        vocab_size=99,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        attention_window=4,
        max_encoder_position_embeddings=40,
    )
    return hf.LEDModel(config).eval()


def pegasus_x():
    torch.manual_seed(0)
    config = hf.PegasusXConfig(
        vocab_size=99,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        block_size=4,
        num_global_tokens=3,
        max_position_embeddings=40,
    )
    return hf.PegasusXModel(config).eval()


def reformer(decoder, after):
    torch.manual_seed(0)
    config = hf.ReformerConfig(
        vocab_size=99,
        hidden_size=32,
        attention_head_size=SIZE,
        num_attention_heads=HEADS,
        attn_layers=["local", "lsh", "lsh"],
        feed_forward_size=16,
        local_attn_chunk_length=4,
        lsh_attn_chunk_length=4,
        local_num_chunks_after=after,
        lsh_num_chunks_after=after,
        num_buckets=4,
        num_hashes=2,
        hash_seed=5,
        is_decoder=decoder,
        axial_pos_shape=[4, 4],
        axial_pos_embds_dim=[16, 16],
        use_cache=False,
    )
    return hf.ReformerModel(config).eval()


CASES = {
    "longformer": lambda: Case(longformer(), texts(), "LongformerSelfAttention"),
    "longformer with global tokens": lambda: Case(longformer(), globally(texts()), "LongformerSelfAttention"),
    "longformer, padded by itself": lambda: Case(
        longformer(), globally(texts(length=13)), "LongformerSelfAttention"
    ),
    "led with global tokens": lambda: Case(
        led(),
        globally(texts()) | {"decoder_input_ids": texts()["input_ids"][:, :5]},
        "LEDEncoderSelfAttention",
    ),
    "pegasus-x": lambda: Case(
        pegasus_x(),
        texts() | {"decoder_input_ids": texts()["input_ids"][:, :5]},
        "PegasusXGlobalLocalAttention",
    ),
}


def recorded(case):
    """Every map of the pieced modules, by name; and both outputs."""
    keep = Keep(lambda site: range(HEADS))
    with torch.inference_mode():
        plain = case.model(**case.given)
        with recording(case.model, [keep]) as record:
            output = case.model(**case.given)
    names = case.modules()
    maps = {kept.site.name: kept for kept in keep.maps if kept.site.name in names}
    return maps, record, plain, output


def unit_rows(case, module):
    """What a module does with unit values, as a map.  -> [batch, head, query, key]"""
    rows, first = [], getattr(case.model.config, "num_global_tokens", 0)

    def unit(linear, args, output):
        if output.ndim == 3 and output.shape[0] == LENGTH and output.shape[1] == 2:  # [key, batch, size]
            return units(0, LENGTH, 2).transpose(0, 1)
        batch, count, _ = output.shape
        return units(0 if count == first else first, count, batch)

    hooks = []
    for name in ("value", "value_global", "v_proj"):
        if hasattr(module, name):
            hooks.append(getattr(module, name).register_forward_hook(unit))
    if hasattr(module, "out_proj"):
        hooks.append(module.out_proj.register_forward_pre_hook(lambda linear, args: rows.append(args[0])))
    else:
        hooks.append(
            module.register_forward_hook(
                lambda *parts: rows.append(getattr(parts[2], "hidden_states", parts[2]))
            )
        )
    try:
        with torch.inference_mode():
            case.model(**case.given)
    finally:
        for hook in hooks:
            hook.remove()
    rows = [row if isinstance(row, torch.Tensor) else row[0] for row in rows]
    return torch.cat(rows, 1).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)


@pytest.mark.parametrize("name", CASES)
def test_every_weight_is_at_its_true_key(name):
    case = CASES[name]()
    maps, _, _, _ = recorded(case)
    assert set(maps) == set(case.modules())
    for path, module in case.modules().items():
        kept = maps[path]
        truth = unit_rows(case, module)
        count = kept.weights.shape[-1]
        assert kept.weights.shape[:3] == (2, HEADS, count)
        torch.testing.assert_close(kept.weights, truth[:, :, :count, :count], atol=1e-6, rtol=0)
        assert float(truth[:, :, :count, count:].abs().amax()) == 0
        tokens = case.given["input_ids"].shape[1]
        assert count == tokens or case.attention == "PegasusXGlobalLocalAttention"
        assert kept.weights.std() > 0.01


@pytest.mark.parametrize("name", CASES)
def test_weights_at_their_keys_give_what_the_module_made_of_its_values(name):
    case = CASES[name]()
    _, record, _, _ = recorded(case)
    own = [site for site in record.sites if site.site.name in case.modules()]
    assert own
    assert all(site.unproved is None and site.difference < 1e-6 for site in own)


@pytest.mark.parametrize("layout", ["longformer", "longformer with global tokens", "pegasus-x"])
def test_weights_put_at_the_keys_beside_theirs_are_said_to_be_wrong(layout, monkeypatch):
    case = CASES[layout]()
    put = chunked.put
    monkeypatch.setattr(chunked, "put", lambda weights, keys, *more: put(weights, keys.roll(1, -1), *more))
    _, record, _, _ = recorded(case)
    assert all(site.differs for site in record.sites if site.site.name in case.modules())


def test_rows_of_global_tokens_are_proved_by_values_of_their_own(monkeypatch):
    case = CASES["longformer with global tokens"]()
    put = chunked.put

    def turned(weights, *more):
        return put(weights if weights.shape[2] == LENGTH else weights.flip(-1), *more)

    monkeypatch.setattr(chunked, "put", turned)
    _, record, _, _ = recorded(case)
    assert all(site.differs for site in record.sites)


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_bit_identical_and_closed_keys_have_no_weight(name):
    maps, record, plain, output = recorded(CASES[name]())
    assert torch.equal(plain.last_hidden_state, output.last_hidden_state)
    assert all(site.site.kind in ("encoder", "decoder") for site in record.sites if site.site.name in maps)
    for kept in maps.values():
        alive = kept.allowed.any(-1, keepdim=True)
        assert float((kept.weights * ~kept.allowed * alive).abs().max()) == 0
        assert bool(kept.allowed.any())


def test_some_rows_of_some_heads_are_those_of_the_whole_map():
    case = CASES["longformer with global tokens"]()
    seen = []

    class Part:
        def observe(self, attention):
            whole = attention.weights()
            seen.append(torch.equal(attention.rows(6, 9, [1]), whole[:, 1:, 6:9]))
            seen.append(torch.equal(attention.rows(3, 4), whole[:, :, 3:4]))

    with torch.inference_mode(), recording(case.model, [Part()]):
        case.model(**case.given)
    assert seen == [True] * 4


def test_a_token_outside_the_window_is_closed_unless_it_is_global():
    maps, _, _, _ = recorded(CASES["longformer with global tokens"]())
    first = maps["encoder.layer.0.attention.self"]  # reaches 2 to either side
    assert first.allowed[0, 0, 10].nonzero()[:, 0].tolist() == [0, 7, 8, 9, 10, 11, 12]
    assert bool(first.allowed[0, 0, 7].all())  # a global query sees all keys


@pytest.mark.parametrize(("after", "length"), [(0, 16), (1, 16), (0, 4)])
def test_chunks_of_sorted_tokens_are_holes_that_say_so(after, length):
    model = reformer(True, after)
    with torch.inference_mode(), recording(model, warn=False) as record:
        model(**texts(length=length))
    assert not record.sites
    assert [(layer.layer, "attends in chunks" in layer.reason) for layer in record.without_attention] == [
        (layer, True) for layer in range(3)
    ]
