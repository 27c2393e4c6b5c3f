"""Layer numbers and kinds."""

import torch
import transformers as hf

from attnscope.capture import recording
from attnscope.capture.placing.kinds import LayerNumbers
from tests.capture.tiny import FAMILIES, SIZES


def numbered(*calls, kind="encoder", width=4):
    """The layers of some (name, invocation) calls in turn."""
    numbers = LayerNumbers()
    return [numbers.number(kind, name, invocation, width) for name, invocation in calls]


def test_one_number_in_the_path_is_the_layer():
    assert numbered(("layers.1.attn", 0), ("layers.3.attn", 0)) == [1, 3]


def test_no_number_or_several_count_on():
    assert numbered(("attention", 0)) == [0]
    assert numbered(
        ("stages.0.blocks.0.attn", 0), ("stages.0.blocks.1.attn", 0), ("stages.1.blocks.0.attn", 0)
    ) == [
        0,
        1,
        2,
    ]


def test_a_second_tower_counts_on_from_the_end_of_the_first():
    first = [("vision.layers.0.attn", 0), ("vision.layers.1.attn", 0)]
    assert numbered(*first, ("text.layers.0.attn", 0), ("text.layers.2.attn", 0)) == [0, 1, 4, 6]


def test_a_second_attention_in_every_block_counts_on_too():
    calls = [("layers.0.time", 0), ("layers.0.space", 0), ("layers.1.time", 0), ("layers.1.space", 0)]
    assert numbered(*calls, width=2) == [0, 2, 1, 3]


def test_a_shared_module_gets_the_next_free_number():
    assert numbered(("layers.0.attn", 0), ("layers.0.attn", 1), ("layers.0.attn", 2), width=1) == [0, 1, 2]


def test_pieces_of_one_module_call_share_their_number():
    assert numbered(("layers.2.attn", 0), ("layers.2.attn", 0)) == [2, 2]


def test_kinds_are_numbered_apart():
    numbers = LayerNumbers()
    assert numbers.number("decoder", "decoder.layers.0.self_attn", 0, 2) == 0
    assert numbers.number("cross", "decoder.layers.0.cross_attn", 0, 2) == 0


def test_no_two_calls_of_a_kind_in_a_pass_share_a_number():
    for name in ("bert", "albert", "gpt-oss"):
        model = FAMILIES[name].build()
        with torch.inference_mode(), recording(model) as record:
            for _ in range(2):
                model(input_ids=torch.randint(4, 99, (1, 6)))
        places = [(site.step, site.site.kind, site.site.layer) for site in record.sites]
        assert len(set(places)) == len(places)


def test_both_towers_of_a_two_tower_model_are_named():
    text = {**SIZES, "num_hidden_layers": 2}
    vision = {**text, "image_size": 16, "patch_size": 8}
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    model = hf.CLIPModel._from_config(config).eval()
    with torch.inference_mode(), recording(model) as record:
        model(input_ids=torch.randint(4, 90, (1, 6)), pixel_values=torch.randn(1, 3, 16, 16))
    assert {(site.site.kind, site.site.layer, site.site.name) for site in record.sites} == {
        (kind, layer, f"{tower}.encoder.layers.{layer}.self_attn")
        for kind, tower in (("decoder", "text_model"), ("encoder", "vision_model"))
        for layer in (0, 1)
    }


def test_a_decoder_that_attends_to_an_encoder_has_both_kinds():
    config = hf.BertConfig(**SIZES, num_hidden_layers=2, is_decoder=True, add_cross_attention=True)
    model = hf.BertModel._from_config(config).eval()
    with torch.inference_mode(), recording(model) as record:
        model(input_ids=torch.randint(4, 99, (1, 5)), encoder_hidden_states=torch.randn(1, 5, 32))
    assert [(site.site.kind, site.site.layer) for site in record.sites] == [
        ("decoder", 0),
        ("cross", 0),
        ("decoder", 1),
        ("cross", 1),
    ]


def test_padding_behind_the_text_makes_no_decoder():
    model = FAMILIES["bert"].build()
    for real in (1, 2, 4):
        mask = (torch.arange(6) < real).long()[None]
        with torch.inference_mode(), recording(model) as record:
            model(input_ids=torch.randint(4, 99, (1, 6)), attention_mask=mask)
        assert {site.site.kind for site in record.sites} == {"encoder"}


def test_padding_behind_one_token_leaves_a_decoder_a_decoder():
    model = FAMILIES["llama"].build()
    mask = torch.tensor([[1, 0, 0, 0]])
    with torch.inference_mode(), recording(model) as record:
        model(input_ids=torch.randint(4, 99, (1, 4)), attention_mask=mask)
    assert {site.site.kind for site in record.sites} == {"decoder"}


def test_one_token_alone_is_still_a_decoder():
    model = FAMILIES["llama"].build()
    with torch.inference_mode(), recording(model) as record:
        model(input_ids=torch.tensor([[5]]))
    assert {site.site.kind for site in record.sites} == {"decoder"}
