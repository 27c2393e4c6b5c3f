"""Eager attention with capped scores or sinks runs as a fused pass, to the same outputs and figures."""

import pytest
import torch
import transformers

from attnscope.attention import Token
from attnscope.capture import FUSED, recording
from attnscope.fused.fused_pass import FusedPass
from attnscope.measures import DEFAULT, Measurement, fused_request

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
    "attn_implementation": "eager",
}  # fmt: skip


def gemma2():
    config = transformers.Gemma2Config(**SIZES, sliding_window=100, attn_logit_softcapping=2.0)
    return transformers.Gemma2Model(config)


def gpt_oss():
    config = transformers.GptOssConfig(
        **SIZES, sliding_window=100, num_local_experts=2, num_experts_per_tok=1
    )
    return transformers.GptOssModel(config)


@pytest.fixture(scope="module", params=[gemma2, gpt_oss])
def model(request):
    torch.manual_seed(0)
    model = request.param().eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    return model


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, 50, (1, 600), generator=torch.Generator().manual_seed(1))


def text_of(ids):
    return tuple(Token(f"w{id_}", id_) for id_ in ids[0].tolist())


def request_of(ids):
    return fused_request(DEFAULT, [text_of(ids)])


def run(model, ids, fused=None):
    """The model's output, the figures of its heads, and the record."""
    measured = Measurement()
    text = text_of(ids)
    with torch.inference_mode(), recording(model, [measured], {"decoder": (text, text)}, fused) as record:
        output = model(input_ids=ids, use_cache=False).last_hidden_state
    return output, measured.figures(), record


def test_outputs_and_figures_are_those_of_the_eager_function(model, ids):
    plain, expected, _ = run(model, ids)
    output, found, record = run(model, ids, FusedPass(request_of(ids)))
    assert [site.kernel for site in record.sites] == [FUSED, FUSED]
    assert record.without_attention == []
    torch.testing.assert_close(output, plain, rtol=1e-4, atol=1e-4)
    assert len(found) == len(expected) == 8
    for one, other in zip(found, expected, strict=True):
        assert one.site == other.site
        assert one.figures.keys() == other.figures.keys()
        for name, figure in other.figures.items():
            assert one.figures[name].rows == figure.rows, name
            assert one.figures[name].value == pytest.approx(figure.value, rel=1e-4, abs=1e-4), name
            assert one.figures[name].baseline == pytest.approx(figure.baseline, rel=1e-9, abs=1e-12), name


def test_a_short_text_is_left_to_the_function(model, ids):
    plain, _, _ = run(model, ids[:, :50])
    output, _, record = run(model, ids[:, :50], FusedPass(request_of(ids)))
    assert {site.refusal for site in record.sites} == {"it has fewer than 512 keys"}
    assert torch.equal(output, plain)


def test_nothing_stays_behind(model, ids):
    plain, _, _ = run(model, ids)
    run(model, ids, FusedPass(request_of(ids)))
    again, _, record = run(model, ids)
    assert torch.equal(again, plain)
    assert {site.kernel for site in record.sites} == {"eager"}
