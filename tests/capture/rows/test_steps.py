"""The steps of a generation, joined, are the attention of the whole text in one pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

import attnscope
from attnscope.attention import Attention, HeldRows, Site, Token
from attnscope.capture import Steps, recording
from attnscope.measures import Measurement
from tests.capture.modules import Of
from tests.capture.observing import check_parts, observe
from tests.capture.tiny import BART, FAMILIES


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
    """Joined steps have the weights and the open keys of one pass."""
    places = {(each.site.kind, each.site.layer): each for each in joined}
    assert len(places) == len(joined) == len(whole)
    for full in whole:
        attention = places[full.site.kind, full.site.layer]
        torch.testing.assert_close(attention.weights(), full.weights, atol=1e-5, rtol=0)
        allowed, batch = attention.allowed(0, len(attention.queries)), len(full.weights)
        assert torch.equal(allowed.expand(batch, -1, -1, -1), full.allowed.expand(batch, -1, -1, -1))


@pytest.mark.parametrize(
    ("family", "static"),
    [(family, False) for family in ("gpt2", "llama", "mistral", "gemma2", "gpt-oss")]
    + [(family, True) for family in ("llama", "gemma2")],
)
def test_steps_make_the_map_of_the_whole_text(family, static):
    model, ids = FAMILIES[family].build(), torch.randint(4, 99, (2, 11))
    cache = hf.StaticCache(config=model.config, max_cache_len=16) if static else None
    steps, record = grown(model, ids, cache)
    agree(steps.joined(), observe(model, input_ids=ids)[1])
    assert [site.step for site in record.sites[:: len(record.sites) // 7]] == list(range(7))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_keys_are_held_once_however_many_steps_there_are(family):
    model, held = FAMILIES[family].build(), []
    for count in (10, 30):
        sites = grown(model, torch.randint(4, 99, (1, count)))[0]._sites.values()
        assert all(call.read.call.key.numel() == 0 for site in sites for call in site.calls)
        held.append([sum(keys.count for keys in site.keys.values()) for site in sites])
    assert [long - short for short, long in zip(*held, strict=True)] == [20] * len(held[0])


def test_any_rows_can_be_read_alone():
    check_parts(grown(FAMILIES["mistral"].build(), torch.randint(4, 99, (1, 9)))[0].joined()[1])


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
    agree(steps.joined(), observe(model, input_ids=ids, decoder_input_ids=out[:, :-1])[1])


def test_steps_of_weights_are_held_as_they_were_and_go_under_each_other():
    steps = Steps()
    for weights, offset in ((torch.full((1, 2, 2, 2), 0.5), 0), (torch.full((1, 2, 1, 2), 0.25), 1)):
        rows, keys = weights.shape[2:]
        shape = 1, 2, 2, range(rows), range(keys), offset, torch.float32
        site = Site("layer", 0, "decoder", 0)
        steps.observe(Attention(site, "softmax", "softmax", *shape, HeldRows(weights)))
        weights.fill_(0)  # as a model may
    (joined,) = steps.joined()
    assert joined.weights()[0, 0].tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0.25, 0.25]]
    assert joined.allowed(2, 3)[0, 0].tolist() == [[False, True, True]]


@pytest.mark.parametrize("errors", [(0.5, 1e-7), (1e-7, 0.5), (None, 0.5, 1e-7), (0.0, 1e-7), (None, None)])
def test_steps_are_as_far_from_their_kernel_as_the_worst_of_them(errors):
    steps, site = Steps(), Site("layer", 0, "decoder", 0)
    for step, error in enumerate(errors):
        shape = 1, 1, 1, range(1), range(step + 1), step, torch.float32
        rows = HeldRows(torch.full((1, 1, 1, step + 1), 1 / (step + 1)))
        steps.observe(Attention(site, "kernel", "sdpa", *shape, rows, difference=error))
    (joined,) = steps.joined()
    assert joined.difference == max((error for error in errors if error is not None), default=None)


def test_steps_of_different_batches_are_refused():
    model = FAMILIES["llama"].build()
    steps = Steps()
    with torch.inference_mode(), recording(model, [steps]):
        for batch in (1, 2):
            model(input_ids=torch.randint(4, 99, (batch, 4)), use_cache=False)
    with pytest.raises(ValueError, match="differ in their heads or their batch"):
        steps.joined()


def test_a_call_that_does_not_go_on_keeps_keys_of_its_own():
    model, steps, texts = FAMILIES["llama"].build(), Steps(), torch.randint(4, 99, (2, 1, 6))
    with torch.inference_mode(), recording(model, [steps]):
        for ids in texts:
            model(input_ids=ids, use_cache=False)
    passes = [observe(model, input_ids=ids)[1] for ids in texts]
    for attention, first, second in zip(steps.joined(), *passes, strict=True):
        weights = attention.weights()
        torch.testing.assert_close(weights[:, :, :6, :6], first.weights)
        torch.testing.assert_close(weights[:, :, 6:, 6:], second.weights)
        assert not weights[:, :, 6:, :6].any()


def in_a_ring(m, x, start):
    """A decoder of one head whose cache holds position p at p mod 4."""
    places = torch.arange(start, start + x.shape[1])
    m.keys[:, :, places % 4], m.values[:, :, places % 4] = m.k(x)[:, None], m.v(x)[:, None]
    states = m.q(x)[:, None], m.keys.clone(), m.values.clone()
    return F.scaled_dot_product_attention(*states, attn_mask=torch.arange(4) <= places[:, None])


def score_candidates(model, ids):
    """Three next tokens scored on one cache, which is cropped after each."""
    cache = hf.DynamicCache(config=model.config)
    model(input_ids=ids[:, :2], past_key_values=cache)
    for token in (5, 6, 7):
        model(input_ids=torch.tensor([[token]]), past_key_values=cache)
        cache.crop(-1)
    return [(3, 3), (1, 3), (1, 3)], torch.cat([ids[:, :2], torch.tensor([[7]])], 1)


def read_two_texts(model, ids):
    model(input_ids=ids)
    model(input_ids=ids[:, :1])
    model(input_ids=ids + 1)
    return [(9, 9), (1, 1), (9, 9)], ids + 1


def go_on_in_chunks(model, ids):
    cache = hf.DynamicCache(config=model.config)
    for start, stop in ((0, 4), (4, 7), (7, 9)):
        model(input_ids=ids[:, start:stop], past_key_values=cache)
    return [(9, 9)], ids


def fill_a_static_cache(model, ids):
    cache = hf.StaticCache(config=model.config, max_cache_len=16)
    for start, stop in ((0, 7), (7, 8), (8, 9)):
        model(input_ids=ids[:, start:stop], past_key_values=cache, use_cache=True)
    return [(9, 9)], ids


@pytest.mark.parametrize("way", [score_candidates, read_two_texts, go_on_in_chunks, fill_a_static_cache])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_passes_are_joined_where_the_keys_of_one_go_on_in_the_next(family, way):
    model, eager = FAMILIES[family].build(), FAMILIES[family].build("eager")
    with torch.inference_mode(), attnscope.record(model) as run:
        shapes, text = way(model, torch.randint(4, 98, (1, 9)))
        whole = eager(input_ids=text, output_attentions=True).attentions[1]
    maps = [each.head("L1H3").weights for each in run.passes]
    assert [each.shape for each in maps] == shapes
    np.testing.assert_allclose(maps[-1], whole[0, 3, -len(maps[-1]) :], atol=1e-6)
    notes = [note for note in run.notes if "passes" in note]
    count = f"the last of {len(shapes)} passes: run.passes has each"
    assert notes == ([count] if len(shapes) > 1 else [])


def test_steps_on_a_ring_buffer_are_passes_of_their_own():
    torch.manual_seed(0)
    layers = {name: nn.Linear(8, 8) for name in "qkv"}
    model = Of(in_a_ring, keys=torch.zeros(1, 1, 4, 8), values=torch.zeros(1, 1, 4, 8), **layers).eval()
    x = torch.randn(1, 7, 8)
    rows = []
    with torch.inference_mode(), attnscope.record(model) as run:
        for start, stop in ((0, 3), *((place, place + 1) for place in range(3, 7))):
            model(x[:, start:stop], start)
            query, keys = model.q(x[:, start:stop]), model.keys[0, 0]
            rows.append((query[0] @ keys.mT / 8**0.5)[:, :stop].softmax(-1))
    maps = [each.head("L0H0").weights for each in run.passes]
    assert maps[0].shape == (4, 4)  # position 3 went where none was
    np.testing.assert_allclose(maps[0][3], rows[1][0], atol=1e-6)
    for mine, theirs in zip(maps[1:], rows[2:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
