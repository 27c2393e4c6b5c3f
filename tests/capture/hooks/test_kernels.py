"""Attention functions: flash, flex, direct calls of torch.ops.aten, and code that is not Python."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers.modeling_utils import AttentionInterface

import attnscope
from attnscope.attention import AttentionCall
from attnscope.capture import recording
from attnscope.capture.hooks.functions import COMPILED
from attnscope.capture.recorder import NESTED
from tests.capture.modules import FunctionModule, Heads, Kernel
from tests.capture.observing import check_kept, observe
from tests.capture.tiny import FAMILIES, inputs, tiny
from tests.fused.combinations import brute_force

SEEN = []
IDS = torch.randint(4, 99, (2, 9))


def spread(query, *parts):
    """Keys and values, one for each head of the queries."""
    return [part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in parts]


def weigh(*call, **options):
    """The weights of a call; no recording sees how they are computed, as in a kernel."""
    with torch._C.DisableTorchFunction():
        return brute_force(AttentionCall(*call, **options)).nan_to_num().float()


def mix(weights, value):
    """What a function returns that mixes values by these weights, which are kept."""
    SEEN.append(weights)
    return (weights @ value).transpose(1, 2).contiguous()


def reference_flash(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **options):
    """What flash attention computes, written out: padding, causality from the end, window, cap, sinks."""
    queries, keys = query.shape[2], key.shape[2]
    row, place = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)[None]
    opened = place <= row if module.is_causal else torch.ones(queries, keys, dtype=torch.bool)
    if options.get("sliding_window") is not None:
        opened = opened & ((row - place).abs() < options["sliding_window"])
    if attention_mask is not None:
        real = attention_mask.bool()[:, None]
        opened = opened & real[:, :, None] & real[:, :, -queries:, None]
    more = {"softcap": options.get("softcap"), "sinks": options.get("s_aux")}
    return mix(weigh(query, key, value, scaling, masks=(opened,), **more), *spread(query, value)), None


@pytest.fixture
def using(monkeypatch):
    """Builds a model with an attention function of one's own, whose weights are gathered in ``SEEN``."""
    SEEN.clear()

    def build(family, name="flash_attention_2", function=reference_flash):
        mapping = dict(AttentionInterface._global_mapping, **{name: function})
        monkeypatch.setattr(AttentionInterface, "_global_mapping", mapping)
        model = FAMILIES[family].build()
        model.config._attn_implementation = name
        return model

    return build


def check_seen(maps):
    """Every map is what the function weighed."""
    del SEEN[: len(SEEN) // 2]  # those of the pass without a recording
    for kept, weights in zip(maps, SEEN, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss", "bert"])
@pytest.mark.parametrize("padded", [True, False])
def test_flash_attention_weights_follow_its_mask(using, family, padded):
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, : 3 * padded] = 0
    try:
        model = using(family)
    except ValueError as refusal:
        if family != "gpt-oss":
            raise
        pytest.skip(str(refusal))  # of transformers 5.0
    record, maps, _ = observe(model, input_ids=IDS, attention_mask=mask)
    assert {(site.source, site.kernel) for site in record.sites} == {("recomputed", "flash_attention_2")}
    assert record.without_attention == []
    check_seen(maps)
    pairs = zip(maps, SEEN, strict=True)
    assert not any(weights[~kept.allowed.expand_as(weights)].any() for kept, weights in pairs)
    if family in ("mistral", "gpt-oss", "gemma2"):
        assert 4 in {site.window for site in record.sites}


def test_cached_flash_step_counts_positions_from_the_end(using):
    model = using("mistral")

    def steps():
        cache = model(input_ids=IDS[:, :5], use_cache=True).past_key_values
        return model(input_ids=IDS[:, 5:], past_key_values=cache, use_cache=True).last_hidden_state

    check_seen(observe(model, call=steps)[1])


def no_softmax(module, query, key, value, attention_mask, scaling=None, **options):
    key, value = spread(query, key, value)
    return ((query.relu() @ key.relu().mT) @ value).transpose(1, 2).contiguous(), None


def test_attention_function_without_softmax_is_named(using):
    record, maps, _ = observe(using("llama", "relu_attention", no_softmax), input_ids=IDS)
    assert (record.sites, maps) == ([], [])
    assert [layer.layer for layer in record.without_attention] == [0, 1, 2]
    assert "'relu_attention' computes something other than softmax" in record.without_attention[0].reason


def by_the_formula(module, query, key, value, attention_mask, scaling=None, **options):
    return mix(weigh(query, key, value, scaling, diagonal=0), *spread(query, value)), None


def with_a_sink_of_each_query(module, query, key, value, attention_mask, scaling=None, **options):
    """Keys are closed by a number that is far from the lowest one."""
    key, value = spread(query, key, value)
    scores = query @ key.mT * scaling + torch.ones(9, 9).triu(1) * -1e9
    sinks = module.q_proj(torch.ones(1, 9, module.q_proj.in_features)).view(1, 9, query.shape[1], -1)
    sinks = sinks[..., :1].transpose(1, 2).expand(len(query), -1, -1, -1)
    return mix(torch.cat([scores, sinks], -1).softmax(-1)[..., :-1], value), SEEN[-1]


def with_weights_that_do_not_make_its_output(module, query, key, value, attention_mask, scaling, **options):
    key, value = spread(query, key, value)
    scores = query @ key.mT * scaling + attention_mask
    share = (scores.logsumexp(-1) - options["s_aux"].view(1, -1, 1)).sigmoid()[..., None]
    return mix(scores.softmax(-1) * share, value), scores.softmax(-1)


FUNCTIONS = [  # a family, a function and its name, and where the weights come from
    ("llama", by_the_formula, "by_hand", "recomputed"),
    ("llama", with_a_sink_of_each_query, "sinking", "kernel"),
    ("gpt-oss", with_weights_that_do_not_make_its_output, "eager", "recomputed"),
]


@pytest.mark.parametrize(("family", "function", "name", "source"), FUNCTIONS)
def test_weights_of_registered_functions_reproduce_output(using, family, function, name, source):
    if name == "eager" and not hasattr(AttentionInterface, "get_interface"):
        pytest.skip("this transformers looks no eager function up")
    record, maps, _ = observe(using(family, name, function), input_ids=IDS)
    check_seen(maps)
    assert {(site.source, site.kernel, site.site.kind) for site in record.sites} == {
        (source, name, "decoder")
    }
    assert all(site.difference < 1e-5 for site in record.sites)
    if family == "llama":
        assert all(torch.equal(kept.allowed[0, 0], torch.ones(9, 9).tril().bool()) for kept in maps)


@pytest.mark.sweep(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_flex_attention_weights_follow_its_block_mask(family):
    eager, model = (FAMILIES[family].build(kind) for kind in ("eager", "flex_attention"))
    model.load_state_dict(eager.state_dict())
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    given = {"input_ids": IDS, "attention_mask": mask}
    with torch.compiler.set_stance("force_eager"):  # the same arithmetic, without minutes of compilation
        record, maps, _ = observe(model, **given)
    with torch.inference_mode():
        own = eager(**given, output_attentions=True).attentions
    assert record.without_attention == []
    assert {(site.source, site.kernel) for site in record.sites} == {("recomputed", "flex_attention")}
    for kept, weights in zip(maps, own, strict=True):
        alive = kept.allowed.any(-1, keepdim=True)
        torch.testing.assert_close(kept.weights * alive, weights * alive, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_weights_applied_to_two_values_are_shown_once(kernel):
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    family = tiny("DiffLlama", vocab_size=9, num_attention_heads=4, num_key_value_heads=4, **sizes)
    record, *_ = observe(family.build(kernel), torch.arange(6)[None])
    assert [site.site.layer for site in record.sites] == [0, 1]
    assert all(site.difference < 1e-5 for site in record.sites)


SIZE, HEADS, COUNT = 16, 4, 7
X = torch.randn(2, COUNT, SIZE)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.linspace(-1, 1, HEADS * COUNT * COUNT).view(HEADS, COUNT, COUNT)
TEXTS = torch.tensor([0, 0, 0, 1, 1, 1, 1])


CHANGES = {  # a score and its text, head, query and key -> another score
    "alibi": lambda score, text, head, query, key: score + SLOPES[head] * (key - query),
    "capped": lambda score, text, head, query, key: 3 * torch.tanh(score / 3),
    "biased": lambda score, text, head, query, key: score + TABLE[head, query, key],
    "causal": lambda score, text, head, query, key: torch.where(query >= key, score, -torch.inf),
}
OPEN = {
    "past": lambda text, head, query, key: query >= key,
    "of one text": lambda text, head, query, key: (TEXTS[query] == TEXTS[key]) & (query >= key),
    "none of the first row": lambda text, head, query, key: (query > 0) & ((query - key).abs() < 3),
}


class Flexible(nn.Module):
    """Torch's flexible kernel of scores that are changed and of pairs that are open; it keeps weights."""

    def __init__(self, change=None, is_open=None, key_heads=HEADS, attend=flex_attention):
        super().__init__()
        size = SIZE // HEADS * key_heads
        self.q, self.k, self.v = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, size), nn.Linear(SIZE, size)
        self.change, self.is_open, self.attend, self.kept = change, is_open, attend, []

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (-1, SIZE // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        scores, mask, place = q @ spread(q, k)[0].mT / 2, None, torch.arange(x.shape[1])
        texts, heads = torch.arange(len(x)).view(-1, 1, 1, 1), torch.arange(HEADS)[:, None, None]
        everywhere = texts, heads, place[:, None], place
        if self.change is not None:
            scores = self.change(scores, *everywhere)
        if self.is_open is not None:
            scores = scores.masked_fill(~self.is_open(*everywhere), -torch.inf)
            mask = create_block_mask(self.is_open, None, None, len(place), len(place), device="cpu")
        self.kept.append(scores.softmax(-1).nan_to_num())
        mixed = self.attend(q, k, v, score_mod=self.change, block_mask=mask, enable_gqa=k.shape[1] < HEADS)
        return mixed.transpose(1, 2).flatten(2)


CASES = [
    *((change, None, HEADS) for change in (None, *CHANGES)),
    *((None, is_open, HEADS) for is_open in OPEN),
    ("alibi", "past", 2),
    ("biased", "none of the first row", 2),
]


@pytest.mark.parametrize(("change", "is_open", "key_heads"), CASES)
def test_flex_rows_follow_score_modification_and_mask(change, is_open, key_heads):
    torch.manual_seed(0)
    model = nn.Sequential(*(Flexible(CHANGES.get(change), OPEN.get(is_open), key_heads) for _ in range(2)))
    record, maps, _ = observe(model, X)
    check_kept(model, maps)
    assert (record.notes, record.without_attention) == ([], [])
    kind = "decoder" if change == "causal" or is_open in ("past", "of one text") else "encoder"
    for layer, (site, kept) in enumerate(zip(record.sites, maps, strict=True)):
        assert (site.site.layer, site.site.kind, site.kernel) == (layer, kind, "flex_attention")
        assert site.key_heads == key_heads
        assert site.difference < 1e-6
        if change != "causal":
            assert torch.equal(kept.allowed.expand_as(kept.weights), kept.weights > 0)


def test_very_low_flex_scores_are_not_masked():
    model = Flexible(is_open=OPEN["past"])
    with torch.no_grad():
        model.q.bias[:], model.k.bias[:] = 200, -200
    _, (kept,), _ = observe(nn.Sequential(model), X)
    assert kept.allowed.equal(torch.ones_like(kept.weights, dtype=torch.bool).tril())


def test_compiled_flex_attention_is_captured_uncompiled():
    torch.manual_seed(0)
    model = Flexible(CHANGES["alibi"], OPEN["past"], attend=torch.compile(flex_attention, backend="eager"))
    record, maps, _ = observe(model, X)
    check_kept(model, maps)
    assert record.notes == [COMPILED]


def test_flex_attention_compiled_by_transformers_is_noted():
    model = FAMILIES["llama"].build("flex_attention")
    with torch.inference_mode(), recording(model, warn=False) as record:
        model(**inputs("text"))
    assert {site.kernel for site in record.sites} == {"flex_attention"}
    assert record.warnings == [COMPILED]


class Late(nn.Module):
    """Loads torch's compiler when it runs."""

    def __init__(self):
        super().__init__()
        self.compiler = sys.modules["torch._dynamo"]

    def forward(self, x):
        sys.modules["torch._dynamo"] = self.compiler
        return flex_attention(x, x, x)


def test_first_compilation_during_recording_runs_uncompiled(monkeypatch):
    model, x = Late(), torch.randn(1, 2, 5, 8)
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    with torch.inference_mode(), recording(model, warn=False) as record:
        watched = model(x)
    torch.testing.assert_close(watched, F.scaled_dot_product_attention(x, x, x))
    assert [site.kernel for site in record.sites] == ["flex_attention"]
    assert not record.failures


aten = torch.ops.aten
CALLS = {
    "_scaled_dot_product_flash_attention_for_cpu": aten._scaled_dot_product_flash_attention_for_cpu,
    "scaled_dot_product_attention": aten.scaled_dot_product_attention.default,
    "_scaled_dot_product_attention_math": torch._scaled_dot_product_attention_math,
}


def layers(kernel=F.scaled_dot_product_attention, count=3):
    """Layers of attention by a kernel, which may return more than its output."""

    def way(self, *heads):
        mixed = kernel(*heads)
        return mixed[0] if isinstance(mixed, tuple) else mixed

    return nn.Sequential(*(Heads(way) for _ in range(count))).eval()


@pytest.mark.parametrize("name", CALLS)
def test_direct_kernel_calls_are_named(name):
    record, *_ = observe(layers(CALLS[name], 2), X)
    assert not record.sites
    assert [layer.name for layer in record.without_attention] == ["0", "1"]
    assert all(f"torch.ops.aten.{name} directly" in layer.reason for layer in record.without_attention)


@pytest.mark.parametrize(("bias", "diagonal"), [(causal_upper_left, 0), (causal_lower_right, 4)])
@pytest.mark.parametrize("queries", [5, 9])
def test_torch_causal_bias_becomes_its_mask(bias, diagonal, queries):
    query, key = torch.randn(1, 2, queries, 8), torch.randn(1, 2, 9, 8)
    record, (kept,), _ = observe(Kernel(), query, key, key, attn_mask=bias(queries, 9))
    opened = torch.ones(queries, 9, dtype=torch.bool).tril(diagonal * (queries < 9))
    weights = (query @ key.mT / 8**0.5).masked_fill(~opened, -torch.inf).softmax(-1)
    torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)
    assert torch.equal(kept.allowed[0, 0], opened)
    assert record.sites[0].difference < 1e-6


def test_attention_on_jagged_tensors_is_named():
    def run(m, x):
        texts = torch.nested.nested_tensor([x[0, :3], x[0, 3:]], layout=torch.jagged)
        heads = texts.unflatten(-1, (2, -1)).transpose(1, 2)
        return torch.cat(m.attend(heads, heads, heads).transpose(1, 2).flatten(2).unbind())

    record, *_ = observe(FunctionModule(run, attend=Kernel()), X)
    assert [(layer.name, layer.reason) for layer in record.without_attention] == [("attend", NESTED)]


MADE = {
    "traced or scripted": lambda module: torch.jit.trace(module, X),
    "exported": lambda module: torch.export.export(module, (X,)).module(),
    "exported (torch.export)": lambda module: torch.export.export(module, (X,)).run_decompositions().module(),
}


@pytest.mark.sweep(2)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("how", MADE)
@pytest.mark.sealed
def test_traced_or_exported_layer_is_named_if_it_has_attention(how):
    model = layers()
    model[1] = MADE[how](model[1])
    model.append(torch.jit.trace(nn.LayerNorm(SIZE), X))
    with torch.inference_mode(), attnscope.record(model) as run:
        model(X)
    assert {head.layer for head in run.heads} == {0, 2}
    (note,) = (note for note in run.notes if "record the original module" in note)
    assert note.startswith("no attention in layer 1: it is ")
    assert how in note
