"""The steps of a generation, put together, are the map of the whole text in one pass."""

import pytest
import torch
import transformers as hf

from attnscope.capture import Keep, recording, stitched
from tests.capture.tiny import BART, FAMILIES


def keep_all(model, *passes):
    """Every head of several passes under one recording.  -> maps"""
    keep = Keep(lambda site: range(4))
    with torch.inference_mode(), recording(model, [keep]):
        for given in passes:
            model(**given)
    return keep.maps


def grown(model, ids, cache=None, first=5):
    """Maps of a prefill of ``first`` tokens and one step for each token behind."""
    cache = hf.DynamicCache(config=model.config) if cache is None else cache
    spans = [(0, first), *((i, i + 1) for i in range(first, ids.shape[1]))]
    passes = [{"input_ids": ids[:, a:b], "past_key_values": cache, "use_cache": True} for a, b in spans]
    return keep_all(model, *passes)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_steps_make_the_map_of_the_whole_text(family):
    model = FAMILIES[family].build()
    ids = torch.randint(4, 99, (2, 11))
    whole = keep_all(model, {"input_ids": ids})
    joined = stitched(grown(model, ids))
    assert [kept.site.layer for kept in joined] == [kept.site.layer for kept in whole]
    for kept, full in zip(joined, whole, strict=True):
        torch.testing.assert_close(kept.weights, full.weights, atol=1e-5, rtol=0)
        assert torch.equal(kept.allowed.expand(2, -1, -1, -1), full.allowed.expand(2, -1, -1, -1))


def test_a_static_cache_makes_the_same_map():
    model = FAMILIES["llama"].build()
    ids = torch.randint(4, 99, (1, 9))
    whole = keep_all(model, {"input_ids": ids})
    joined = stitched(grown(model, ids, hf.StaticCache(config=model.config, max_cache_len=16)))
    for kept, full in zip(joined, whole, strict=True):
        torch.testing.assert_close(kept.weights, full.weights, atol=1e-5, rtol=0)
        assert torch.equal(kept.allowed, full.allowed)


def test_cross_attention_grows_by_rows_and_the_encoder_stays():
    config = hf.BartConfig(**BART, forced_eos_token_id=None, eos_token_id=None)
    model = hf.BartForConditionalGeneration._from_config(config).eval()
    ids = torch.randint(4, 99, (1, 7))
    keep = Keep(lambda site: range(4))
    with torch.inference_mode(), recording(model, [keep]):
        out = model.generate(ids, max_new_tokens=4, num_beams=1, do_sample=False, decoder_start_token_id=1)
    targets = out[:, :-1]
    whole = keep_all(model, {"input_ids": ids, "decoder_input_ids": targets})
    count = targets.shape[1]
    joined = {(kept.site.kind, kept.site.layer): kept for kept in stitched(keep.maps)}
    assert len(joined) == len(whole)
    for full in whole:
        kept = joined[full.site.kind, full.site.layer]
        torch.testing.assert_close(kept.weights, full.weights, atol=1e-5, rtol=0)
        if kept.site.kind == "cross":
            assert kept.weights.shape == (1, 4, count, 7)


def test_steps_of_different_batches_are_refused():
    model = FAMILIES["llama"].build()
    maps = keep_all(model, *({"input_ids": torch.randint(4, 99, (n, 4)), "use_cache": False} for n in (1, 2)))
    with pytest.raises(ValueError, match="differ in their heads or their batch"):
        stitched(maps)
