"""The steps of a generation, joined, are the attention of the whole text in one pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

import attnscope
from attnscope.attention import Attention, HeldRows, Site, Token
from attnscope.capture import Steps, recording
from attnscope.capture.rows.steps import SteppedRows
from attnscope.measures import Measurement
from tests.capture.observing import observe
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
    assert [attention.site.layer for attention in joined] == [full.site.layer for full in whole]
    for attention, full in zip(joined, whole, strict=True):
        batch = full.weights.shape[0]
        torch.testing.assert_close(attention.weights(), full.weights, atol=1e-5, rtol=0)
        allowed = attention.allowed(0, len(attention.queries))
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
    whole = observe(model, input_ids=ids, decoder_input_ids=targets)[1]
    joined = {(attention.site.kind, attention.site.layer): attention for attention in steps.joined()}
    assert len(joined) == len(whole)
    for full in whole:
        attention = joined[full.site.kind, full.site.layer]
        torch.testing.assert_close(attention.weights(), full.weights, atol=1e-5, rtol=0)
        if attention.site.kind == "cross":
            assert (len(attention.queries), len(attention.keys)) == (targets.shape[1], 7)


def test_weights_that_a_model_overwrites_later_are_held_as_they_were():
    buffer, site = torch.tensor([[[[1.0]]]]), Site("layer", 0, "decoder", 0)
    shape = 1, 1, 1, range(1), range(1), 0, torch.float32
    steps = Steps()
    steps.observe(Attention(site, "softmax", "softmax", *shape, HeldRows(buffer)))
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


class Ring(torch.nn.Module):
    """A decoder of one head whose cache holds position p at p mod 4; ``cropped`` puts it back by some."""

    def __init__(self, size=4):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))
        self.keys, self.values = torch.zeros(1, 1, size, 8), torch.zeros(1, 1, size, 8)

    def forward(self, x, start):
        at = torch.arange(start, start + x.shape[1]) % self.keys.shape[2]
        self.keys[:, :, at], self.values[:, :, at] = self.k(x)[:, None], self.v(x)[:, None]
        mask = torch.arange(self.keys.shape[2]) <= torch.arange(start, start + x.shape[1])[:, None]
        call = torch.nn.functional.scaled_dot_product_attention
        return call(self.q(x)[:, None], self.keys.clone(), self.values.clone(), attn_mask=mask)


def score_candidates(model, ids):
    """Three next tokens scored on one cache, which is cropped after each."""
    cache = hf.DynamicCache(config=model.config)
    model(input_ids=ids[:, :2], past_key_values=cache)
    for token in (5, 6, 7):
        model(input_ids=torch.tensor([[token]]), past_key_values=cache)
        cache.crop(-1)
    return [(3, 3), (1, 3), (1, 3)]


def read_two_texts(model, ids):
    model(input_ids=ids)
    model(input_ids=ids[:, :1])
    model(input_ids=ids + 1)
    return [(9, 9), (1, 1), (9, 9)]


def go_on_in_chunks(model, ids):
    cache = hf.DynamicCache(config=model.config)
    for start, stop in ((0, 4), (4, 7), (7, 9)):
        model(input_ids=ids[:, start:stop], past_key_values=cache)
    return [(9, 9)]


def fill_a_static_cache(model, ids):
    cache = hf.StaticCache(config=model.config, max_cache_len=16)
    for start, stop in ((0, 7), (7, 8), (8, 9)):
        model(input_ids=ids[:, start:stop], past_key_values=cache, use_cache=True)
    return [(9, 9)]


@pytest.mark.parametrize("way", [score_candidates, read_two_texts, go_on_in_chunks, fill_a_static_cache])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_passes_are_joined_where_the_keys_of_one_go_on_in_the_next(family, way):
    model = FAMILIES[family].build()
    with torch.inference_mode(), attnscope.record(model) as run:
        shapes = way(model, torch.randint(4, 99, (1, 9)))
    assert [each.head("L1H3").weights.shape for each in run.passes] == shapes
    notes = [note for note in run.notes if "passes" in note]
    count = f"the last of {len(shapes)} passes: run.passes has each"
    assert notes == ([count] if len(shapes) > 1 else [])


def test_a_candidate_on_a_cropped_cache_has_the_weights_of_its_own_text():
    model = FAMILIES["llama"].build()
    ids = torch.randint(4, 99, (1, 9))
    with torch.inference_mode(), attnscope.record(model) as run:
        score_candidates(model, ids)
    text = torch.cat([ids[:, :2], torch.tensor([[7]])], 1)
    eager = FAMILIES["llama"].build("eager")
    with torch.inference_mode():
        whole = eager(input_ids=text, output_attentions=True).attentions[1]
    np.testing.assert_allclose(run.head("L1H3").weights, whole[0, 3, -1:], atol=1e-6)


def test_steps_on_a_ring_buffer_are_passes_of_their_own():
    torch.manual_seed(0)
    model, x = Ring().eval(), torch.randn(1, 7, 8)
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


class Summaries(nn.Module):
    """Causal attention, of texts of six, that also sees the mean of each earlier three."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        keys = self.kv(x)
        keys = torch.cat([keys, keys.unflatten(1, (-1, 3)).mean(2)], 1)[:, None]
        ends = torch.cat([torch.arange(6), torch.tensor([2, 5])])  # the last token of each key
        mask = ends <= torch.arange(6)[:, None]
        return F.scaled_dot_product_attention(self.q(x)[:, None], keys, keys, attn_mask=mask)


def test_queries_begin_at_their_own_keys_where_others_stand_behind_the_text():
    maps = observe(Summaries(), torch.randn(1, 6, 8))[1]
    assert [(each.queries, each.keys, each.site.kind) for each in maps] == [(range(6), range(8), "decoder")]
