"""Layer numbers and kinds."""

import pytest
import torch

from attnscope.capture.placing.kinds import LayerNumbers
from tests.capture.observing import observe
from tests.capture.tiny import FAMILIES, SIZES, tiny

LAYERS = "layers.{}.attn"
NUMBERED = {  # modules that attend in turn, how often each was called before, and their layers
    "one number in the path is the layer": ([(LAYERS.format(1), 0), (LAYERS.format(3), 0)], 4, [1, 3]),
    "no number counts on": ([("attention", 0)], 4, [0]),
    "several numbers count on": (
        [("stages.0.blocks.0.attn", 0), ("stages.0.blocks.1.attn", 0), ("stages.1.blocks.0.attn", 0)],
        4,
        [0, 1, 2],
    ),
    "a second tower counts on from the end of the first": (
        [(f"{tower}.layers.{at}.attn", 0) for tower, at in (("a", 0), ("a", 1), ("b", 0), ("b", 2))],
        4,
        [0, 1, 4, 6],
    ),
    "a second attention in every block counts on too": (
        [(f"layers.{at}.{name}", 0) for at in (0, 1) for name in ("time", "space")],
        2,
        [0, 2, 1, 3],
    ),
    "a shared module gets the next free number": ([(LAYERS.format(0), at) for at in range(3)], 1, [0, 1, 2]),
    "pieces of one module call share their number": ([(LAYERS.format(2), 0)] * 2, 4, [2, 2]),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_layers_are_numbered_by_their_paths(name):
    calls, width, layers = NUMBERED[name]
    numbers = LayerNumbers()
    assert [numbers.number("encoder", *call, width) for call in calls] == layers


def test_kinds_are_numbered_apart():
    numbers = LayerNumbers()
    assert numbers.number("decoder", "decoder.layers.0.self_attn", 0, 2) == 0
    assert numbers.number("cross", "decoder.layers.0.cross_attn", 0, 2) == 0


def test_no_two_calls_of_a_kind_in_a_pass_share_a_number():
    ids = torch.randint(4, 99, (1, 6))
    for name in ("bert", "albert", "gpt-oss"):
        model = FAMILIES[name].build()
        record, *_ = observe(model, call=lambda model=model: [model(ids)[0] for _ in range(2)])
        places = [(site.step, site.site.kind, site.site.layer) for site in record.sites]
        assert len(set(places)) == len(places)


def test_both_towers_of_a_two_tower_model_are_named():
    text = {**SIZES, "num_hidden_layers": 2}
    vision = {**text, "image_size": 16, "patch_size": 8}
    model = tiny("CLIP", text_config=text, vision_config=vision, projection_dim=16).build()
    ids, pixels = torch.randint(4, 90, (1, 6)), torch.randn(1, 3, 16, 16)
    record, *_ = observe(model, input_ids=ids, pixel_values=pixels)
    assert {(site.site.kind, site.site.layer, site.site.name) for site in record.sites} == {
        (kind, layer, f"{tower}.encoder.layers.{layer}.self_attn")
        for kind, tower in (("decoder", "text_model"), ("encoder", "vision_model"))
        for layer in (0, 1)
    }


def test_a_decoder_that_attends_to_an_encoder_has_both_kinds():
    model = tiny("Bert", **SIZES, num_hidden_layers=2, is_decoder=True, add_cross_attention=True).build()
    ids, states = torch.randint(4, 99, (1, 5)), torch.randn(1, 5, 32)
    record, *_ = observe(model, input_ids=ids, encoder_hidden_states=states)
    expected = [(kind, layer) for layer in (0, 1) for kind in ("decoder", "cross")]
    assert [(site.site.kind, site.site.layer) for site in record.sites] == expected


def test_padding_behind_the_text_makes_no_decoder():
    model = FAMILIES["bert"].build()
    for real in (1, 2, 4):
        mask = (torch.arange(6) < real).long()[None]
        record, *_ = observe(model, input_ids=torch.randint(4, 99, (1, 6)), attention_mask=mask)
        assert {site.site.kind for site in record.sites} == {"encoder"}


@pytest.mark.parametrize("padding", [0, 3])
def test_one_token_alone_or_before_padding_is_still_a_decoder(padding):
    mask = torch.tensor([[1, *[0] * padding]])
    ids = torch.randint(4, 99, (1, 1 + padding))
    record, *_ = observe(FAMILIES["llama"].build(), input_ids=ids, attention_mask=mask)
    assert {site.site.kind for site in record.sites} == {"decoder"}
