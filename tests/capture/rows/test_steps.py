"""The joined steps of a generation equal the attention of the whole text in one pass."""

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
from attnscope.models.trace_recording import RecordedPasses
from tests.capture.modules import FunctionModule
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
def test_generation_steps_join_into_full_map(family, static):
    model, ids = FAMILIES[family].build(), torch.randint(4, 99, (2, 11))
    cache = hf.StaticCache(config=model.config, max_cache_len=16) if static else None
    steps, record = grown(model, ids, cache)
    agree(steps.joined(), observe(model, input_ids=ids)[1])
    assert [site.step for site in record.sites[:: len(record.sites) // 7]] == list(range(7))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_step_keys_are_stored_once(family):
    model, held = FAMILIES[family].build(), []
    for count in (10, 30):
        sites = grown(model, torch.randint(4, 99, (1, count)))[0]._sites.values()
        assert all(call.read.call.key.numel() == 0 for site in sites for call in site.calls)
        held.append([sum(keys.count for keys in site.keys.values()) for site in sites])
    assert [long - short for short, long in zip(*held, strict=True)] == [20] * len(held[0])


def test_any_rows_of_joined_steps_can_be_read():
    check_parts(grown(FAMILIES["mistral"].build(), torch.randint(4, 99, (1, 9)))[0].joined()[1])


def test_steps_after_the_end_of_text_are_dropped():
    model, ids = FAMILIES["llama"].build(), torch.randint(4, 99, (1, 11))
    steps = grown(model, ids)[0]
    steps.drop_behind(8)
    agree(steps.joined(), observe(model, input_ids=ids[:, :8])[1])
    assert all(len(each.read.shifts) == len(each.read.calls) for each in steps.joined())


def test_replayed_steps_measure_like_one_pass():
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
    for head, other in zip(once.scores(), again.scores(), strict=True):
        assert (head.site, head.head, head.absent) == (other.site, other.head, other.absent)
        for name, score in head.scores.items():
            assert other.scores[name].value == pytest.approx(score.value, abs=1e-5)
            assert other.scores[name].rows == score.rows


def test_generation_adds_cross_attention_rows():
    config = hf.BartConfig(**BART, forced_eos_token_id=None, eos_token_id=None)
    model = hf.BartForConditionalGeneration._from_config(config).eval()
    ids = torch.randint(4, 99, (1, 7))
    steps = Steps()
    with torch.inference_mode(), recording(model, [steps]):
        out = model.generate(ids, max_new_tokens=4, num_beams=1, do_sample=False, decoder_start_token_id=1)
    agree(steps.joined(), observe(model, input_ids=ids, decoder_input_ids=out[:, :-1])[1])


def test_step_weights_are_copied_and_stacked():
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
def test_joined_steps_report_their_largest_difference(errors):
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


def test_uncached_calls_keep_separate_keys():
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
def test_passes_with_continued_keys_are_joined(family, way):
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


def recorded(model, run):
    """The passes that ``run`` makes, held."""
    passes = RecordedPasses()
    with torch.inference_mode(), recording(model, [passes]):
        run()
    return passes.steps


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2"])
def test_steps_after_unrecorded_prefill_keep_positions(family):
    model, ids = FAMILIES[family].build(), torch.randint(4, 99, (1, 14))
    cache = hf.DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=ids[:, :10], past_key_values=cache, use_cache=True)
        with attnscope.record(model, [f"t{place}" for place in range(14)]) as run:
            for place in range(10, 14):
                model(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
        eager = FAMILIES[family].build("eager")(input_ids=ids, output_attentions=True).attentions
    for layer, whole in enumerate(eager):
        head = run.head(f"L{layer}H3")
        np.testing.assert_allclose(head.weights, whole[0, 3, 10:], atol=1e-6)
        rows = whole[0, 3, 10:].double().numpy()
        entropy = -(rows * np.log(rows, where=rows > 0, out=np.zeros_like(rows))).sum(-1).mean()
        assert head.scores["entropy"].value == pytest.approx(entropy, abs=1e-5)
        assert head.scores["no_key"].value == pytest.approx(0, abs=1e-5)
        assert head.queries == ("t10", "t11", "t12", "t13")
    assert any("rows begin at position 10" in note for note in run.notes)


def test_single_step_has_labels_of_all_keys():
    model, ids = FAMILIES["llama"].build(), torch.randint(4, 99, (1, 6))
    cache, labels = hf.DynamicCache(config=model.config), tuple("abcdef")
    with torch.inference_mode():
        model(input_ids=ids[:, :5], past_key_values=cache, use_cache=True)
        with attnscope.record(model, labels) as run:
            model(input_ids=ids[:, 5:], past_key_values=cache, use_cache=True)
    head = run.head("L0H0")
    assert (head.queries, head.keys, head.weights.shape) == (("f",), labels, (1, 6))
    assert any("rows begin at position 5" in note for note in run.notes)


def test_step_with_larger_batch_is_a_separate_pass():
    model, ids = FAMILIES["llama"].build(), torch.randint(4, 99, (1, 6))
    cache = hf.DynamicCache(config=model.config)

    def read():
        model(input_ids=ids[:, :5], past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(2)
        model(input_ids=ids[:, 5:].repeat(2, 1), past_key_values=cache, use_cache=True)

    assert [len(steps.joined()[0].queries) for steps in recorded(model, read)] == [5, 1]


def fork(model, ids, step):
    """Three beams that change places twice, from a prompt of five tokens.  -> texts that are left"""
    texts = ids.repeat(3, 1)
    step(texts)
    for tokens, parents in (([7, 8, 9], [0, 1, 2]), ([5, 6, 7], [1, 1, 0]), ([4, 4, 9], [0, 2, 2])):
        texts = torch.cat([texts[parents], torch.tensor(tokens)[:, None]], 1)
        step(texts[:, -1:], parents)
    return texts


def test_beam_rows_are_those_of_surviving_texts():
    model, ids = FAMILIES["gemma2"].build(), torch.randint(4, 99, (1, 5))
    cache, left = hf.DynamicCache(config=model.config), []

    def step(tokens, parents=()):
        if parents:
            cache.reorder_cache(torch.tensor(parents))
        model(input_ids=tokens, past_key_values=cache, use_cache=True)

    (steps,) = recorded(model, lambda: left.append(fork(model, ids, step)))
    agree(steps.joined(), observe(model, input_ids=left[0])[1])
    (note,) = steps.notes
    assert "beams" in note


def test_beam_cross_attention_follows_its_texts():
    model, ids, left = FAMILIES["bart"].build(), torch.randint(4, 99, (1, 5)), []
    cache = hf.EncoderDecoderCache(hf.DynamicCache(), hf.DynamicCache())
    with torch.inference_mode():
        seen = model.encoder(input_ids=ids.repeat(3, 1))

    def step(tokens, parents=()):
        if parents:
            cache.reorder_cache(torch.tensor(parents))
        model(encoder_outputs=seen, decoder_input_ids=tokens, past_key_values=cache, use_cache=True)

    (steps,) = recorded(model, lambda: left.append(fork(model, ids, step)))
    whole = observe(model, encoder_outputs=seen, decoder_input_ids=left[0])[1]
    agree(steps.joined(), whole)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rejected_draft_rows_are_dropped(attention):
    model, ids = FAMILIES["gpt2"].build(attention), torch.randint(4, 99, (1, 12))
    cache, wrong = hf.DynamicCache(config=model.config), torch.tensor([[1, 2]])

    def read(start, stop, drafts):
        cache.crop(start - cache.get_seq_length())
        model(input_ids=torch.cat([ids[:, start:stop], wrong[:, :drafts]], 1), past_key_values=cache)

    (steps,) = recorded(model, lambda: [read(*span) for span in [(0, 9, 1), (9, 11, 2), (11, 12, 0)]])
    agree(steps.joined(), observe(model, input_ids=ids)[1])
    assert steps.notes == ("3 rows of rejected drafts are left out",)
    if attention == "sdpa":
        assert all(keys.count == 12 for site in steps._sites.values() for keys in site.keys.values())


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_speculative_generation_is_one_pass(family):
    torch.manual_seed(0)
    made = {"llama": hf.LlamaForCausalLM, "mistral": hf.MistralForCausalLM}[family]
    model, ids, texts = (
        made._from_config(FAMILIES[family].config()).eval(),
        torch.arange(5, 8).repeat(1, 3),
        [],
    )
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": -1, "prompt_lookup_num_tokens": 3}
    try:
        (steps,) = recorded(model, lambda: texts.append(model.generate(ids, **options)))
    except ValueError as error:
        if "Cannot `crop`" not in str(error):
            raise
        pytest.skip("this transformers takes nothing back from a sliding cache")
    assert any("drafts" in note for note in steps.notes)
    for attention, full in zip(steps.joined(), observe(model, input_ids=texts[0])[1], strict=True):
        count = len(attention.queries)
        assert count == len(attention.keys) >= 20
        torch.testing.assert_close(attention.weights(), full.weights[:, :, :count, :count], atol=1e-6, rtol=0)


def remember(m, x, start):
    """A decoder of one head; ``m.slots`` says where in its cache the keys of some positions go."""
    slots, positions = m.slots(start, x.shape[1]), torch.arange(start, start + x.shape[1])
    m.keys[:, :, slots], m.values[:, :, slots] = m.k(x)[:, None], m.v(x)[:, None]
    m.positions[slots] = positions
    opened = (m.positions <= positions[:, None]) & (m.positions >= 0)
    return F.scaled_dot_product_attention(m.q(x)[:, None], m.keys.clone(), m.values.clone(), opened)


@pytest.mark.parametrize(
    ("slots", "widths"),
    [
        (lambda start, count: torch.arange(start, start + count) % 4, [3] + [1] * 8),  # a ring
        (lambda start, count: torch.arange(start, start + count) % 6, [6, 2, 3, 1]),
        (lambda start, count: torch.tensor([start if start < 4 else 1 + start % 3]), [1] * 9),  # keeps a sink
    ],
)
def test_overwritten_cache_keys_keep_positions(slots, widths):
    torch.manual_seed(0)
    layers = {name: nn.Linear(8, 8) for name in "qkv"}
    keys, values, positions = *torch.zeros(2, 1, 1, 6, 8), torch.full((6,), -1)
    model = FunctionModule(
        remember, keys=keys, values=values, positions=positions, slots=slots, **layers
    ).eval()
    x, ends = torch.randn(1, sum(widths), 8), np.cumsum(widths)
    expected = np.zeros((sum(widths), sum(widths)))
    with torch.inference_mode(), attnscope.record(model) as run:
        for start, stop in zip(ends - widths, ends, strict=True):
            model(x[:, start:stop], int(start))
            has = [int(place) for place in model.positions if place >= 0]
            scores = (model.q(x).double() @ model.k(x).double().mT / 8**0.5)[0].numpy()
            for row in range(start, stop):
                seen = [place for place in has if place <= row]
                expected[row, seen] = np.exp(scores[row, seen]) / np.exp(scores[row, seen]).sum()
    np.testing.assert_allclose(run.head("L0H0").weights, expected, atol=1e-6)
    assert len(run.passes) == 1


def evict(m, x):
    """Of five keys and more, the second is dropped."""
    k, v = (torch.cat([held, part(x)], 1) for held, part in ((m.keys, m.k), (m.values, m.v)))
    kept = [slot for slot in range(k.shape[1]) if slot != 1 or k.shape[1] < 5]
    m.keys, m.values = k[:, kept], v[:, kept]
    return F.scaled_dot_product_attention(m.q(x)[:, None], k[:, None], v[:, None])


def test_keys_after_eviction_keep_positions():
    torch.manual_seed(0)
    layers = {name: nn.Linear(8, 8) for name in "qkv"}
    held = dict.fromkeys(("keys", "values"), torch.zeros(1, 0, 8))
    model, x = FunctionModule(evict, **held, **layers).eval(), torch.randn(1, 9, 8)
    with torch.inference_mode(), attnscope.record(model) as run:
        for row in range(9):
            model(x[:, row : row + 1])
        scores = (model.q(x).double() @ model.k(x).double().mT / 8**0.5)[0]
    has = [[*range(row + 1)] if row < 5 else [0, *range(row - 3, row + 1)] for row in range(9)]
    closed = torch.ones(9, 9, dtype=torch.bool)
    for row, places in enumerate(has):
        closed[row, places] = False
    expected = scores.masked_fill(closed, -torch.inf).softmax(-1)
    np.testing.assert_allclose(run.head("L0H0").weights, expected, atol=1e-6)


def test_keys_rewritten_by_a_cache_are_named():
    """Positions are turned in the cache, so nothing shows which key is whose."""
    torch.manual_seed(0)
    layers = {name: nn.Linear(8, 8) for name in "qkv"}

    def shift(m, x):
        m.cache = torch.cat([0.9 * m.cache, m.k(x)], 1)[:, -4:]
        return F.scaled_dot_product_attention(m.q(x)[:, None], m.cache[:, None], m.cache[:, None])

    model = FunctionModule(shift, cache=torch.zeros(1, 0, 8), **layers).eval()
    with torch.inference_mode(), attnscope.record(model) as run:
        for _ in range(6):
            model(torch.randn(1, 1, 8))
    assert len(run.passes) == 6
    assert run.head("L0H0").weights.shape == (1, 4)
    assert any("come from a cache" in note for note in run.notes)


class Asking(nn.Module):
    """One query asks a memory, by hand or through a kernel."""

    def __init__(self, kernel, size=8):
        super().__init__()
        self.q, self.k, self.kernel = nn.Linear(size, size), nn.Linear(size, size), kernel

    def forward(self, state, memory):
        q, k = self.q(state)[:, None], self.k(memory)
        if self.kernel:
            return F.scaled_dot_product_attention(q[:, None], k[:, None], memory[:, None])[:, 0, 0]
        return ((q @ k.mT / 8**0.5).softmax(-1) @ memory)[:, 0]


class Recurrent(nn.Module):
    """A decoder that asks an encoder's states at every step, and may change them."""

    def __init__(self, kernel=False, apart=True, change=lambda memory, state: memory):
        super().__init__()
        self.ask, self.cell, self.apart, self.change = Asking(kernel), nn.GRUCell(8, 8), apart, change

    def forward(self, memory):
        state, self.asked = memory[:, -1], []
        for _ in range(5):
            self.asked.append((state, memory))
            ask = self.ask if self.apart else self.ask.forward
            state = self.cell(ask(state, memory), state)
            memory = self.change(memory, state)
        return state

    @torch.inference_mode()
    def weights(self):
        """What each step asks, in float64."""
        found = []
        for state, memory in self.asked:
            q, k = self.ask.q(state).double(), self.ask.k(memory).double()
            found.append((torch.einsum("bd,bkd->bk", q, k) / 8**0.5).softmax(-1))
        return found


@pytest.mark.parametrize(("kernel", "apart"), [(False, True), (False, False), (True, True), (True, False)])
def test_steps_of_a_recurrent_decoder_are_rows_of_one_head(kernel, apart):
    torch.manual_seed(0)
    maps = observe(model := Recurrent(kernel, apart), torch.randn(2, 9, 8))[1]
    ((site, weights, *_),) = maps
    assert (site.kind, site.layer) == ("cross", 0)
    torch.testing.assert_close(weights[:, 0].double(), torch.stack(model.weights(), 1), atol=1e-6, rtol=0)


def grow(memory, state):
    return torch.cat([memory, state[:, None]], 1)


def fade(memory, state):
    return 0.9 * memory


@pytest.mark.parametrize(("apart", "change"), [(True, grow), (False, grow), (True, fade), (False, fade)])
def test_recurrent_steps_with_other_keys_have_own_addresses(apart, change):
    torch.manual_seed(0)
    maps = observe(model := Recurrent(apart=apart, change=change), torch.randn(2, 9, 8))[1]
    assert len({(each.site.kind, each.site.layer) for each in maps}) == 5
    for each, expected in zip(maps, model.weights(), strict=True):
        torch.testing.assert_close(each.weights[:, 0, 0].double(), expected, atol=1e-6, rtol=0)
