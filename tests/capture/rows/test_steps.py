"""The steps of a generation, joined, are the attention of the whole text in one pass."""

from dataclasses import replace

import pytest
import torch
import transformers as hf

from attnscope.attention import Attention, HeldRows, Site, Token
from attnscope.capture import Keep, Steps, recording
from attnscope.capture.rows.steps import SteppedRows
from attnscope.measures import Measurement
from tests.capture.tiny import BART, FAMILIES


def keep_all(model, *passes):
    """Every head of several passes under one recording.  -> maps"""
    keep = Keep(lambda site: range(4))
    with torch.inference_mode(), recording(model, [keep]):
        for given in passes:
            model(**given)
    return keep.maps


def grown(model, ids, cache=None, first=5):
    """A prefill of ``first`` tokens and one step for each token behind, held."""
    cache = hf.DynamicCache(config=model.config) if cache is None else cache
    spans = [(0, first), *((i, i + 1) for i in range(first, ids.shape[1]))]
    steps = Steps()
    with torch.inference_mode(), recording(model, [steps]) as record:
        for a, b in spans:
            model(input_ids=ids[:, a:b], past_key_values=cache, use_cache=True)
    return steps, record


def agree(joined, whole):
    assert [attention.site.layer for attention in joined] == [full.site.layer for full in whole]
    for attention, full in zip(joined, whole, strict=True):
        batch = full.weights.shape[0]
        torch.testing.assert_close(attention.weights(), full.weights, atol=1e-5, rtol=0)
        allowed = attention.allowed(0, len(attention.queries))
        assert torch.equal(allowed.expand(batch, -1, -1, -1), full.allowed.expand(batch, -1, -1, -1))


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_steps_make_the_map_of_the_whole_text(family):
    model = FAMILIES[family].build()
    ids = torch.randint(4, 99, (2, 11))
    agree(grown(model, ids)[0].joined(), keep_all(model, {"input_ids": ids}))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_static_cache_makes_the_same_map(family):
    model = FAMILIES[family].build()
    ids = torch.randint(4, 99, (1, 9))
    steps, _ = grown(model, ids, hf.StaticCache(config=model.config, max_cache_len=16))
    agree(steps.joined(), keep_all(model, {"input_ids": ids}))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_keys_are_held_once_however_many_steps_there_are(family):
    model = FAMILIES[family].build()
    short, long = (grown(model, torch.randint(4, 99, (1, count)))[0] for count in (10, 30))
    assert all(
        held(site) - held(before) == 20
        for site, before in zip(long._sites.values(), short._sites.values(), strict=True)
    )


def held(site):
    """How many keys a site holds, in whatever number of heads its kernel asked for them."""
    assert all(call.read.call.key.numel() == 0 for call in site.calls)
    return sum(keys.count for keys in site.keys.values())


def test_any_rows_can_be_read_alone():
    model = FAMILIES["mistral"].build()
    attention = grown(model, torch.randint(4, 99, (1, 9)))[0].joined()[1]
    whole, opened = attention.weights(), attention.allowed(0, 9)
    for start, stop in [(0, 1), (3, 6), (4, 4), (5, 9), (8, 9), (9, 9)]:
        assert torch.equal(attention.rows(start, stop), whole[:, :, start:stop])
        assert torch.equal(attention.rows(start, stop, [2]), whole[:, 2:3, start:stop])
        assert torch.equal(attention.allowed(start, stop), opened[:, :, start:stop])


def test_a_replay_measures_what_one_pass_measures():
    model = FAMILIES["gemma2"].build()
    ids = torch.randint(4, 20, (1, 11))
    tokens = tuple(Token(str(id_), int(id_)) for id_ in ids[0])
    axes = {"decoder": (tokens, tokens)}
    once, again = Measurement(), Measurement()
    with torch.inference_mode(), recording(model, [once], axes) as record:
        model(input_ids=ids)
    steps, ran = grown(model, ids)
    replay = steps.replay(ran, axes)
    assert replay.shown_to([again]) is replay.record
    for site, own in zip(replay.record.sites, record.sites, strict=True):
        assert replace(site, difference=None) == replace(own, difference=None)
        assert site.difference == max(step.difference for step in ran.sites if step.site == site.site)
        assert site.difference < 1e-5
    for head, other in zip(once.figures(), again.figures(), strict=True):
        assert (head.site, head.head, head.absent) == (other.site, other.head, other.absent)
        for name, figure in head.figures.items():
            assert other.figures[name].value == pytest.approx(figure.value, abs=1e-5)
            assert other.figures[name].rows == figure.rows


def test_cross_attention_grows_by_rows_and_the_encoder_stays():
    config = hf.BartConfig(**BART, forced_eos_token_id=None, eos_token_id=None)
    model = hf.BartForConditionalGeneration._from_config(config).eval()
    ids = torch.randint(4, 99, (1, 7))
    steps = Steps()
    with torch.inference_mode(), recording(model, [steps]):
        out = model.generate(ids, max_new_tokens=4, num_beams=1, do_sample=False, decoder_start_token_id=1)
    targets = out[:, :-1]
    whole = keep_all(model, {"input_ids": ids, "decoder_input_ids": targets})
    joined = {(attention.site.kind, attention.site.layer): attention for attention in steps.joined()}
    assert len(joined) == len(whole)
    for full in whole:
        attention = joined[full.site.kind, full.site.layer]
        torch.testing.assert_close(attention.weights(), full.weights, atol=1e-5, rtol=0)
        if attention.site.kind == "cross":
            assert (len(attention.queries), len(attention.keys)) == (targets.shape[1], 7)


def test_weights_that_a_model_overwrites_later_are_held_as_they_were():
    buffer = torch.tensor([[[[1.0]]]])
    attention = Attention(
        Site("layer", 0, "decoder", 0), "softmax", "softmax", 1, 1, 1, range(1), range(1), 0,
        torch.float32, HeldRows(buffer),
    )  # fmt: skip
    steps = Steps()
    steps.observe(attention)
    buffer.fill_(0)
    (joined,) = steps.joined()
    assert joined.weights().item() == 1


def test_steps_of_weights_go_under_each_other_with_what_is_closed_left_open_to_none():
    parts = (HeldRows(torch.full((1, 2, 2, 2), 0.5)), HeldRows(torch.full((1, 2, 1, 2), 0.25)))
    rows = SteppedRows(parts, (0, 2, 3), (0, 1), 3)
    assert rows.rows(0, 3, [0])[0, 0].tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0.25, 0.25]]
    assert rows.allowed(2, 3)[0, 0].tolist() == [[False, True, True]]


def test_steps_of_different_batches_are_refused():
    model = FAMILIES["llama"].build()
    steps = Steps()
    with torch.inference_mode(), recording(model, [steps]):
        for batch in (1, 2):
            model(input_ids=torch.randint(4, 99, (batch, 4)), use_cache=False)
    with pytest.raises(ValueError, match="differ in their heads or their batch"):
        steps.joined()


def test_a_call_that_does_not_go_on_keeps_keys_of_its_own():
    model = FAMILIES["llama"].build()
    ids = torch.randint(4, 99, (1, 6))
    steps = Steps()
    with torch.inference_mode(), recording(model, [steps]):
        model(input_ids=ids, use_cache=False)
        model(input_ids=ids.flip(1), use_cache=False)
    whole = keep_all(model, {"input_ids": ids}, {"input_ids": ids.flip(1)})
    for attention in steps.joined():
        first, second = (kept for kept in whole if kept.site == attention.site)
        weights = attention.weights()
        torch.testing.assert_close(weights[:, :, :6, :6], first.weights)
        torch.testing.assert_close(weights[:, :, 6:, 6:], second.weights)
        assert not weights[:, :, 6:, :6].any()
