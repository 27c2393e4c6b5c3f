"""Attention functions: flash, flex, those that are called by torch.ops.aten, and code that is not Python."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers.modeling_utils import AttentionInterface

from attnscope.capture import recording
from attnscope.capture.hooks.functions import COMPILED
from tests.capture.modules import Heads, blocks
from tests.capture.observing import observe
from tests.capture.tiny import FAMILIES, inputs, tiny

SEEN = []


def reference_flash(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **options):
    """What flash attention computes, written out: padding, causality from the end, window, cap, sinks."""
    queries, keys = query.shape[2], key.shape[2]
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT * scaling
    if options.get("softcap"):
        scores = (scores / options["softcap"]).tanh() * options["softcap"]
    row = torch.arange(queries)[:, None] + keys - queries
    place = torch.arange(keys)[None]
    opened = place <= row if module.is_causal else torch.ones(queries, keys, dtype=torch.bool)
    if options.get("sliding_window") is not None:
        opened = opened & ((row - place).abs() < options["sliding_window"])
    opened = opened.expand(query.shape[0], 1, -1, -1)
    if attention_mask is not None:
        real = attention_mask.bool()[:, None]
        opened = opened & real[:, :, None] & real[:, :, -queries:, None]
    powers = (scores.exp() * opened).double()
    total = powers.sum(-1, keepdim=True)
    if options.get("s_aux") is not None:
        total = total + options["s_aux"].double().exp()[None, :, None, None]
    weights = torch.where(total > 0, powers / total, 0.0).float()
    SEEN.append(weights)
    return (weights @ value).transpose(1, 2).contiguous(), None


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
def test_flash_attention_is_recomputed_as_it_masks(using, family, padded):
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, : 3 * padded] = 0
    record, maps, _ = observe(using(family), input_ids=torch.randint(4, 99, (2, 9)), attention_mask=mask)
    assert {site.kernel for site in record.sites} == {"flash_attention_2"}
    assert record.without_attention == []
    check_seen(maps)
    pairs = zip(maps, SEEN, strict=True)
    assert not any(weights[~kept.allowed.expand_as(weights)].any() for kept, weights in pairs)
    if family in ("mistral", "gpt-oss", "gemma2"):
        assert 4 in {site.window for site in record.sites}


def test_a_cached_flash_step_counts_from_the_end(using):
    model, ids = using("mistral"), torch.randint(4, 99, (1, 8))

    def steps():
        cache = model(input_ids=ids[:, :5], use_cache=True).past_key_values
        return model(input_ids=ids[:, 5:], past_key_values=cache, use_cache=True).last_hidden_state

    _, maps, _ = observe(model, call=steps)
    check_seen(maps)


def test_a_function_that_is_no_softmax_of_products_is_a_hole(using):
    def linear(module, query, key, value, attention_mask, scaling=None, **options):
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        return ((query.relu() @ key.relu().mT) @ value).transpose(1, 2).contiguous(), None

    record, maps, _ = observe(
        using("llama", "relu_attention", linear), input_ids=torch.randint(4, 99, (1, 9))
    )
    assert (record.sites, maps) == ([], [])
    assert [layer.layer for layer in record.without_attention] == [0, 1, 2]
    assert "'relu_attention' computes no softmax" in record.without_attention[0].reason


def test_another_function_that_follows_the_formula_is_recomputed(using):
    def named(module, query, key, value, attention_mask, scaling=None, **options):
        powers = (query @ key.repeat_interleave(2, 1).mT * scaling).exp().tril()
        SEEN.append(powers / powers.sum(-1, keepdim=True))
        return (SEEN[-1] @ value.repeat_interleave(2, 1)).transpose(1, 2).contiguous(), None

    record, maps, _ = observe(using("llama", "by_hand", named), input_ids=torch.randint(4, 99, (1, 9)))
    check_seen(maps)
    assert {(site.source, site.kernel) for site in record.sites} == {("recomputed", "by_hand")}


def test_a_function_with_a_sink_of_each_query_closes_the_keys_that_its_mask_closes(using):
    def sinking(module, query, key, value, attention_mask, scaling=None, **options):
        scores = query @ key.repeat_interleave(2, 1).mT * scaling + torch.ones(9, 9).triu(1) * -1e9
        sinks = module.q_proj(torch.ones(1, 9, module.q_proj.in_features)).view(1, 9, query.shape[1], -1)
        both = torch.cat([scores, sinks[..., :1].transpose(1, 2)], -1)
        SEEN.append(both.softmax(-1)[..., :-1])
        return (SEEN[-1] @ value.repeat_interleave(2, 1)).transpose(1, 2).contiguous(), SEEN[-1]

    record, maps, _ = observe(using("llama", "sinking", sinking), input_ids=torch.randint(4, 99, (1, 9)))
    check_seen(maps)
    assert {site.site.kind for site in record.sites} == {"decoder"}
    assert all(torch.equal(kept.allowed[0, 0], torch.ones(9, 9).tril().bool()) for kept in maps)


def test_weights_that_do_not_make_the_output_are_those_of_the_formula(using):
    def scaled(module, query, key, value, attention_mask, scaling=None, **options):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.mT * scaling + attention_mask
        share = (scores.logsumexp(-1) - options["s_aux"].view(1, -1, 1)).sigmoid()[..., None]
        SEEN.append(scores.softmax(-1) * share)
        return (scores.softmax(-1) @ value * share).transpose(1, 2).contiguous(), scores.softmax(-1)

    record, maps, _ = observe(using("gpt-oss", "eager", scaled), input_ids=torch.randint(4, 99, (1, 9)))
    check_seen(maps)
    assert all(site.difference < 1e-5 for site in record.sites)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_flex_attention_is_recomputed_with_its_block_mask(family):
    eager, model = (FAMILIES[family].build(kind) for kind in ("eager", "flex_attention"))
    model.load_state_dict(eager.state_dict())
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    given = {"input_ids": torch.randint(4, 99, (2, 9)), "attention_mask": mask}
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
def test_weights_that_meet_other_values_a_second_time_are_shown_once(kernel):
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    family = tiny("DiffLlama", vocab_size=9, num_attention_heads=4, num_key_value_heads=4, **sizes)
    record, *_ = observe(family.build(kernel), torch.arange(6)[None])
    assert [site.site.layer for site in record.sites] == [0, 1]
    assert all(site.difference < 1e-5 for site in record.sites)


SIZE, HEADS, COUNT = 16, 4, 7
X = torch.zeros(2, COUNT, SIZE)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.linspace(-1, 1, HEADS * COUNT * COUNT).view(HEADS, COUNT, COUNT)
TEXTS = torch.tensor([0, 0, 0, 1, 1, 1, 1])


def alibi(score, text, head, query, key):
    return score + SLOPES[head] * (key - query)


def capped(score, text, head, query, key):
    return 3 * torch.tanh(score / 3)


def biased(score, text, head, query, key):
    return score + TABLE[head, query, key]


def causal(score, text, head, query, key):
    return torch.where(query >= key, score, -torch.inf)


def is_past(text, head, query, key):
    return query >= key


def is_of_one_text(text, head, query, key):
    return (TEXTS[query] == TEXTS[key]) & (query >= key)


def is_open_to_no_first_row(text, head, query, key):
    return (query > 0) & ((query - key).abs() < 3)


PLACE = torch.arange(COUNT)
CHANGES = {
    None: lambda scores: scores,
    alibi: lambda scores: scores + SLOPES[:, None, None] * (PLACE - PLACE[:, None]),
    capped: lambda scores: 3 * torch.tanh(scores / 3),
    biased: lambda scores: scores + TABLE,
    causal: lambda scores: scores.masked_fill(torch.ones(COUNT, COUNT).triu(1).bool(), -torch.inf),
}
OPEN = {
    None: torch.ones(COUNT, COUNT, dtype=torch.bool),
    is_past: torch.ones(COUNT, COUNT).tril().bool(),
    is_of_one_text: torch.block_diag(torch.ones(3, 3), torch.ones(4, 4)).tril().bool(),
    is_open_to_no_first_row: ((PLACE - PLACE[:, None]).abs() < 3) & (PLACE > 0)[:, None],
}


class Flexible(nn.Module):
    def __init__(self, change=None, is_open=None, key_heads=HEADS, attend=flex_attention):
        super().__init__()
        size = SIZE // HEADS * key_heads
        self.q, self.k, self.v = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, size), nn.Linear(SIZE, size)
        self.change, self.is_open, self.attend = change, is_open, attend

    def project(self, x):
        return [
            part(x).unflatten(-1, (-1, SIZE // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v)
        ]

    def forward(self, x):
        mask = None
        if self.is_open is not None:
            mask = create_block_mask(self.is_open, None, None, x.shape[1], x.shape[1], device="cpu")
        q, k, v = self.project(x)
        grouped = k.shape[1] < HEADS
        mixed = self.attend(q, k, v, score_mod=self.change, block_mask=mask, enable_gqa=grouped)
        return mixed.transpose(1, 2).flatten(2)


def weights(module, x):
    """The weights by hand."""
    q, k, _ = module.project(x)
    scores = CHANGES[module.change](q @ k.repeat_interleave(HEADS // k.shape[1], 1).mT / 2)
    rows = scores.masked_fill(~OPEN[module.is_open], -torch.inf).softmax(-1)
    return rows.nan_to_num()


def mixed(module, x):
    """What the module returns, by hand."""
    values = module.project(x)[2]
    groups = HEADS // values.shape[1]
    return (weights(module, x) @ values.repeat_interleave(groups, 1)).transpose(1, 2).flatten(2)


CASES = [
    *((change, None, HEADS) for change in CHANGES),
    *((None, is_open, HEADS) for is_open in OPEN if is_open is not None),
    (alibi, is_past, 2),
    (biased, is_open_to_no_first_row, 2),
]


@pytest.mark.parametrize(("change", "is_open", "key_heads"), CASES)
def test_rows_are_those_of_changed_scores_under_the_mask(change, is_open, key_heads):
    torch.manual_seed(0)
    first, second = (Flexible(change, is_open, key_heads) for _ in range(2))
    x = torch.randn(2, COUNT, SIZE)
    record, maps, _ = observe(nn.Sequential(first, second), x)
    with torch.inference_mode():
        expected = [weights(first, x), weights(second, mixed(first, x))]
    assert (record.notes, record.without_attention) == ([], [])
    kind = "encoder" if change is not causal and is_open in (None, is_open_to_no_first_row) else "decoder"
    for layer, (site, kept) in enumerate(zip(record.sites, maps, strict=True)):
        assert (site.site.layer, site.site.kind, site.kernel) == (layer, kind, "flex_attention")
        assert site.key_heads == key_heads
        assert site.difference < 1e-6
        torch.testing.assert_close(kept.weights, expected[layer])
        if change is not causal:
            assert torch.equal(kept.allowed.expand(2, HEADS, -1, -1), OPEN[is_open].expand(2, HEADS, -1, -1))


def test_a_compiled_flex_attention_is_watched_as_it_was_written():
    torch.manual_seed(0)
    model = Flexible(alibi, is_past, attend=torch.compile(flex_attention, backend="eager"))
    record, (kept,), _ = observe(model, x := torch.randn(2, COUNT, SIZE))
    torch.testing.assert_close(kept.weights, weights(model, x))
    assert record.notes == [COMPILED]


def test_transformers_compiles_flex_attention_itself_so_its_models_say_the_same():
    model = FAMILIES["llama"].build("flex_attention")
    with torch.inference_mode(), recording(model, warn=False) as record:
        model(**inputs("text"))
    assert {site.kernel for site in record.sites} == {"flex_attention"}
    assert record.notes == [COMPILED]


LATE = """
import torch
from torch import nn
from attnscope.capture import recording

class Late(nn.Module):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention
        return flex_attention(x, x, x)

model, x = Late().eval(), torch.randn(1, 2, 5, 8)
with torch.inference_mode(), recording(model) as record:
    watched = model(x)
with torch.inference_mode():
    assert torch.equal(watched, model(x))
assert [site.kernel for site in record.sites] == ["flex_attention"] and not record.failures
"""


class Late(nn.Module):
    """Loads torch's compiler when it runs."""

    def __init__(self):
        super().__init__()
        self.compiler = sys.modules["torch._dynamo"]

    def forward(self, x):
        sys.modules["torch._dynamo"] = self.compiler
        return flex_attention(x, x, x)


def test_what_compiles_first_while_it_is_watched_runs_as_it_was_written(monkeypatch):
    model, x = Late(), torch.randn(1, 2, 5, 8)
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    with torch.inference_mode(), recording(model, warn=False) as record:
        watched = model(x)
    torch.testing.assert_close(watched, F.scaled_dot_product_attention(x, x, x))
    assert [site.kernel for site in record.sites] == ["flex_attention"]
    assert not record.failures


@pytest.mark.nightly
def test_a_model_that_first_loads_torchs_compiler_while_it_is_watched_works():
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", LATE], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


aten = torch.ops.aten
CALLS = {
    "_scaled_dot_product_flash_attention_for_cpu": aten._scaled_dot_product_flash_attention_for_cpu,
    "scaled_dot_product_attention": aten.scaled_dot_product_attention.default,
    "_scaled_dot_product_attention_math": torch._scaled_dot_product_attention_math,
}


class Direct(Heads):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def attend(self, *heads):
        mixed = self.kernel(*heads)
        return mixed[0] if isinstance(mixed, tuple) else mixed

    def forward(self, x):
        return (super().forward(x),)


@pytest.mark.parametrize("name", CALLS)
def test_kernels_that_are_called_directly_are_named(name):
    record, *_ = observe(blocks(lambda: Direct(CALLS[name])), X)
    assert not record.sites
    assert [layer.name for layer in record.without_attention] == ["0.attention", "1.attention"]
    assert all(f"torch.ops.aten.{name} itself" in layer.reason for layer in record.without_attention)


MADE = {
    "traced or scripted": lambda module: torch.jit.trace(module, X),
    "exported": lambda module: torch.export.export(module, (X,)).module(),
    "exported (torch.export)": lambda module: torch.export.export(module, (X,)).run_decompositions().module(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("how", MADE)
def test_a_traced_or_exported_part_is_named_with_the_reason(how):
    model = blocks(lambda: Direct(F.scaled_dot_product_attention), 3)
    model[1] = MADE[how](model[1])
    with torch.inference_mode(), recording(model) as record:
        model(X)
    assert [site.site.layer for site in record.sites] == [0, 2]
    (layer,) = record.without_attention
    assert (layer.name, layer.layer) == ("1", 1)
    assert how in layer.reason
    assert "watch the original module" in layer.reason


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_part_without_attention_is_not_mentioned():
    model = blocks(lambda: Direct(F.scaled_dot_product_attention), 3)
    model.append(torch.jit.trace(nn.LayerNorm(SIZE), X))
    record, *_ = observe(model, X)
    assert len(record.sites) == 3
    assert record.without_attention == []
