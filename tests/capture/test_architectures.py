"""A sample of the architectures of the coverage table, one for each way to attend and to be captured."""

import pytest

from tests.tools.coverage.attempt import attempt

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
    "pegasus_x": "the blocks of the others",
    "swin": "the windows, blocks or chosen queries by themselves",
    "t5gemma2": "the keys of one of two sequences",
    "wavlm": "the mean over the heads",
}


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
