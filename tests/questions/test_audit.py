"""An audit names the modules that mix tokens outside the attention that is shown, by what, and no others."""

import contextlib
from collections import UserDict
from functools import cache

import pytest
import torch
import transformers as hf
from torch import nn

from attnscope.capture.recorder import Recorder
from attnscope.errors import InputError
from attnscope.models import ModelInput, load
from attnscope.models.model import Model
from attnscope.questions.audit import audit
from attnscope.questions.audit_pass import find_tensors, with_tensors
from tests.capture import modules
from tests.capture.hooks.test_kernels import Flexible, is_past
from tests.capture.lineage import test_pieces, test_standing
from tests.capture.placing.ways import Stream
from tests.capture.tiny import FAMILIES, inputs
from tests.models.folders import gpt2

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SIZES["vocab_size"] = 99
IDS = torch.randint(5, 55, (1, 6), generator=torch.Generator().manual_seed(1))


class Bare(Model):
    """A module without a tokenizer."""

    def __init__(self, module):
        super().__init__(type(module).__name__, module, None)

    def prepare(self, *texts, **how):
        raise NotImplementedError


def audited(module, *arguments, **inputs):
    """The audit of a module on ids of 6 tokens, each of which is a pass, or on these tensors."""
    if not arguments and not inputs:
        inputs = {"input_ids": IDS}
    return audit(Bare(module), ModelInput(inputs, {}, (), arguments=arguments))


class Of(nn.Module):
    """Parts, and a function of the module and what it is given."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *given, **named):
        return self.run(self, *given, **named)


@contextlib.contextmanager
def missing(path):
    """A capture that misses whatever attends at one module."""
    take = Recorder.take

    def take_others(recorder, capture, name, *more):
        if name != path:
            return take(recorder, capture, name, *more)
        recorder.seen += 1  # so that nobody looks for it in what the module returns

    Recorder.take = take_others
    try:
        yield
    finally:
        Recorder.take = take


def of_family(name):
    tiny = FAMILIES[name]
    fields = inputs(tiny.inputs, batch=1, length=6)
    fields.pop("attention_mask", None)
    return audited(tiny.build(), **fields)


@cache
def nothing_missed(name):
    """The audit of a family with all of its capture, made once."""
    return of_family(name)


CALLS = {"bert": 3, "gpt-oss": 3, "deberta-v2": 2, "albert": 3, "t5": 6, "vit": 2}


@pytest.mark.parametrize("name", CALLS)
def test_a_model_that_mixes_by_attention_alone_is_said_to(name):
    said = "all mixing between tokens goes through the attention that is shown"
    assert nothing_missed(name).sentences == (f"{said}: {CALLS[name]} attention calls",)


@pytest.mark.parametrize(
    ("name", "place"),
    [("bert", 0)]
    + [
        pytest.param(*each, marks=pytest.mark.nightly)
        for each in (("vit", -1), ("t5", -1), ("deberta-v2", 0))
    ],
)
@pytest.mark.slow
def test_one_layer_that_the_capture_misses_is_named_exactly(name, place):
    sites = nothing_missed(name).sites
    with missing(sites[place].name):
        seen = of_family(name)
    assert [mixer.path for mixer in seen.mixers] == [sites[place].name]
    assert seen.sentences[-1] == f"1 of {len(sites)} attention calls were not captured"


def test_convolutions_beside_attention_are_named_and_their_layers():
    seen = audited(hf.ConvBertModel(hf.ConvBertConfig(**SIZES, embedding_size=32)), input_ids=IDS)
    assert len(seen.sites) == 2
    assert (
        "layers 0-1, encoder.layer.*.attention.self.key_conv_attn_layer (SeparableConv1D), "
        "mix tokens by a convolution as well"
    ) in seen.sentences
    assert {mixer.layer for mixer in seen.mixers} == {0, 1}


def test_state_space_layers_of_a_hybrid_are_named_once():
    config = hf.JambaConfig(
        **SIZES | {"num_hidden_layers": 3},
        num_key_value_heads=2,
        num_experts=2,
        use_mamba_kernels=False,
        attn_layer_period=3,
        attn_layer_offset=1,
        mamba_d_state=8,
    )
    seen = audited(hf.JambaModel(config), input_ids=IDS)
    assert [site.layer for site in seen.sites] == [1]
    assert seen.sentences == (
        "layers 0, 2, layers.*.mamba (JambaMambaMixer), mix tokens by a state-space model as well",
    )


def test_a_model_without_attention_is_audited_too():
    config = hf.FNetConfig(hidden_size=32, num_hidden_layers=2, intermediate_size=64, vocab_size=99)
    seen = audited(hf.FNetModel(config), input_ids=IDS)
    assert seen.sites == ()
    assert [mixer.path for mixer in seen.mixers] == [f"encoder.layer.{n}.fourier.self" for n in range(2)]


def latents(layer):
    """Learned queries that look at a text and then, unseen by any capture, go through a layer."""
    parts = {"embed": nn.Embedding(99, 16), "queries": nn.Parameter(torch.randn(5, 16)), "layer": layer}
    attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def run(m, ids):
        states = m.embed(ids)
        return m.layer(m.read(m.queries.expand(len(ids), -1, -1), states, states)[0])

    return Of(run, **parts, read=attend)


def test_what_mixes_learned_queries_is_named():
    assert audited(latents(nn.Linear(16, 16)), IDS).complete
    seen = audited(latents(turned(nn.Linear(5, 5))), IDS)
    assert [mixer.path for mixer in seen.mixers] == ["layer"]


@pytest.mark.parametrize("way", test_standing.INSIDE[::3], ids=lambda way: way.__name__)
def test_what_mixes_inside_of_each_token_mixes_no_tokens(way, monkeypatch):
    monkeypatch.setattr(test_standing, "COUNT", 8)  # and so tokens, enough to be changed
    torch.manual_seed(0)
    assert audited(test_standing.Model(way).eval(), torch.randn(1, 8, test_standing.SIZE)).complete


def test_queries_that_choose_among_the_streams_of_their_own_token_are_not_moved_by_hand():
    def choose(m, *layers):
        states = torch.stack(layers, 2)  # [text, token, layer, feature]
        query = m.query.expand(*states.shape[:2], 1, -1)
        return nn.functional.scaled_dot_product_attention(query, m.key(states), states)[:, :, 0]

    def streams(m, states):
        """Each token asks its own states of two layers, behind attention over the tokens."""
        return states + m.choose(states, m.layers(m.attend(states, states, states)[0]))

    torch.manual_seed(0)
    asks = Of(choose, query=nn.Parameter(torch.randn(1, 16)), key=nn.Linear(16, 16))
    attend = nn.MultiheadAttention(16, 2, batch_first=True)
    model = Of(streams, choose=asks, attend=attend, layers=nn.Linear(16, 16))
    seen = audited(model.eval(), torch.randn(1, 9, 16))
    assert seen.complete
    assert [site.name for site in seen.sites] == ["attend"]


def test_attention_from_channel_to_channel_is_not_shown_and_so_mixes():
    layer = Stream(test_pieces.between_channels)
    seen = audited(nn.Sequential(layer), torch.randn(1, test_pieces.COUNT, test_pieces.SIZE))
    assert seen.sentences == (
        "layer 0, * (Stream), mixes tokens by attention from channel to channel as well",
    )


def test_states_as_numbers_are_audited_like_ids():
    states = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))
    assert audited(nn.Sequential(nn.Linear(16, 16)), states).complete
    assert [mixer.path for mixer in audited(nn.Sequential(shift()), states).mixers] == ["0"]


def test_nothing_is_left_on_the_model_and_its_outputs_are_as_before():
    model = FAMILIES["bert"].build()
    with torch.inference_mode():
        before = model(IDS).last_hidden_state
        audited(model)
        assert torch.equal(model(IDS).last_hidden_state, before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_input_without_tokens_is_refused():
    with pytest.raises(InputError, match="a text of several tokens"):
        audit(Bare(nn.Linear(3, 3)), ModelInput({"x": torch.ones(1, 3)}, {}, ()))


def test_a_recorded_pass_is_refused(tmp_path):
    model = load(gpt2(tmp_path), generative=True)
    with pytest.raises(InputError, match="give a text, not a recorded pass"):
        audit(model, model.generate(model.prepare("The cat"), 2))


@pytest.mark.parametrize("name", ["own", "own-causal"])
def test_own_models_mix_by_attention_alone(name):
    model = load(name)
    assert audit(model, model.prepare("The cat sat.")).complete


def test_kernels_that_modules_call_themselves_are_held():
    seen = audited(nn.Sequential(Flexible(is_open=is_past)).eval(), torch.randn(1, 7, 16))
    assert (len(seen.sites), seen.complete) == (1, True)


# by what tokens mix beside and behind attention


class Reader(nn.Module):
    """Attention, and beside it one more way in which tokens meet."""

    def __init__(self, meet):
        super().__init__()
        self.embed, self.grams = nn.Embedding(99, 16), nn.Embedding(99, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.join, self.behind = nn.Linear(32, 16), nn.Linear(16, 16)
        self.recur = nn.GRU(16, 16, batch_first=True)
        self.meet = meet

    def forward(self, ids):
        states = self.embed(ids)
        states = states + self.attend(states, states, states, need_weights=False)[0]
        return self.behind(self.meet(self, ids, states))


def mean_of_words(m, ids, states):
    words = (ids > 7)[..., None]
    return (states * words).sum(1) / words.sum(1)


def mean_by_a_product(m, ids, states):
    return torch.full((1, 1, ids.shape[1]), 1 / ids.shape[1]) @ states


SELF = "the model itself (Reader)"
WAYS = {
    "recurrence": (lambda m, ids, states: m.recur(states)[0], "recur (GRU)", "a recurrence"),
    "mean": (lambda m, ids, states: states.mean(1), SELF, "pooling"),
    "side by side": (
        lambda m, ids, states: m.join(torch.cat([states, states.roll(1, 1)], -1)),
        "join (Linear)",
        "a matrix product",
    ),
    "some word": (
        lambda m, ids, states: states[:, int(ids.sum()) % ids.shape[1]],
        SELF,
        "a choice among tokens",
    ),
    "neighbour": (lambda m, ids, states: states + states.roll(1, 1), SELF, "a sum"),
    "gated": (lambda m, ids, states: states * torch.sigmoid(states.roll(1, 1)), SELF, "a product"),
    "mean of words": (mean_of_words, SELF, "pooling"),
    "pairs of ids": (
        lambda m, ids, states: m.grams((ids + 7 * ids.roll(1, 1)) % 99),
        "grams (Embedding)",
        "ids that are made of several tokens",
    ),
    "mean by a product": (mean_by_a_product, SELF, "a matrix product"),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_function_that_mixes_tokens_gives_the_way_its_name(name):
    meet, where, way = WAYS[name]
    assert audited(Reader(meet), IDS).sentences == (f"{where} mixes tokens by {way} as well",)


class Parts(tuple):
    """A tuple that torch does not know."""


def test_tensors_in_classes_of_a_model_are_found_and_put_as_in_lists():
    first, second, third = torch.rand(3, 2)
    value = Parts([first, UserDict({"states": [second]}), 7])
    assert [id(each) for each in find_tensors(value)] == [id(first), id(second)]
    put = with_tensors(value, iter([third, first]))
    assert type(put) is Parts
    assert [id(each) for each in find_tensors(put)] == [id(third), id(first)]


def test_functions_that_only_move_numbers_mix_nothing():
    turned = audited(Reader(lambda m, ids, states: states.roll(1, 1).flip(1)), IDS)
    assert turned.complete, turned.sentences


def test_a_number_for_a_whole_batch_is_no_failure():
    total = Of(lambda m, states: (states.sum(), states))
    seen = audited(nn.Sequential(nn.Linear(16, 16), total), torch.randn(1, 5, 16))
    assert seen.sentences == ("layer 1, * (Of), mixes tokens by pooling as well",)


@pytest.mark.parametrize("name", ["merge_sizes", "timesteps", "t_cond"])
def test_what_is_said_of_all_tokens_is_no_token(name):
    def scaled(m, **given):
        return m.read(given["input_ids"]) * given[name].float().sum()

    model = Of(scaled, read=Reader(lambda m, ids, states: states))
    seen = audited(model, input_ids=IDS, **{name: torch.tensor([2, 3])})
    assert seen.complete, seen.sentences


class Routed(nn.Module):
    """Tokens are sorted by their experts, which run on one stretch each, and put back into their order."""

    def __init__(self):
        super().__init__()
        self.router, self.sort = nn.Linear(16, 3), Sort()
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, states):
        flat = states.flatten(0, 1)
        sorted_states, order, counts = self.sort(flat, self.router(flat))
        parts = sorted_states.split(counts)
        made = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return torch.zeros_like(flat).index_add(0, order, made).view_as(states)


class Sort(nn.Module):
    """States in the order of their experts."""

    def forward(self, states, scores):
        chosen = scores.argmax(-1)
        order = chosen.argsort(stable=True)
        return states[order], order, torch.bincount(chosen, minlength=3).tolist()


def test_tokens_that_a_module_sorts_and_puts_back_are_not_mixed():
    reader = Reader(lambda m, ids, states: m.routed(states))
    torch.manual_seed(0)
    reader.routed = Routed()
    seen = audited(reader, IDS)
    assert seen.complete, seen.sentences


def test_tokens_that_a_module_sorts_and_leaves_so_are_mixed():
    reader = Reader(lambda m, ids, states: m.routed(states[0], m.behind(states[0])[:, :3])[0])
    reader.routed = Sort()
    assert audited(reader, IDS).sentences == ("routed (Sort) mixes tokens by a choice among tokens as well",)


class Behind(nn.Module):
    """Attention, and something behind it; no residual."""

    def __init__(self, attend, behind):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attend = nn.Embedding(99, 16), attend()
        self.norm, self.behind = nn.LayerNorm(16), behind()

    def forward(self, ids):
        return self.behind(self.norm(self.mixed(self.embed(ids))))

    def mixed(self, states):
        if isinstance(self.attend, modules.SequenceFirst):
            return self.attend(states.transpose(0, 1))[0].transpose(0, 1)
        if isinstance(self.attend, nn.MultiheadAttention):
            return self.attend(states, states, states)[0]
        mixed = self.attend(states)[0]
        return mixed.flatten(1, 2).transpose(1, 2).flatten(2) if mixed.ndim == 5 else mixed


def turned(layer):
    """A layer over positions instead of features."""
    return Of(lambda m, states: m.layer(states.mT).mT, layer=layer)


def shift():
    return Of(lambda m, states: states + states.roll(1, 1))


def windows(begin):
    """Attention in windows of four tokens, which begin so many tokens later."""

    def run(m, states):
        q, k, v = m.qkv(states.roll(-begin, 1).unflatten(1, (-1, 4))).chunk(3, -1)
        return ((q @ k.mT).softmax(-1) @ v).flatten(1, 2).roll(begin, 1)

    return Of(run, qkv=nn.Linear(16, 48))


ATTENDING = {
    "kernel": lambda: nn.MultiheadAttention(16, 2, batch_first=True),
    "softmax": lambda: modules.Softmaxed(modules.SOFTMAXES["torch.softmax"]),
    "einsum": modules.SequenceFirst,
    "single heads": lambda: modules.ListedHeads(heads=2),
    "layers": lambda: modules.ListedLayers(layers=2),
    "grouped": lambda: modules.GroupedByAxis("einsum"),
}
MIXING = {
    "convolution": (lambda: turned(nn.Conv1d(16, 16, 3, padding=1)), "a convolution"),
    "layer": (lambda: turned(nn.Linear(6, 6)), "a matrix product"),
    "sum": (shift, "a sum"),
    None: (lambda: nn.Linear(16, 16), None),
}


@pytest.mark.parametrize(
    ("attending", "mixing"),
    [*((attending, "convolution") for attending in ATTENDING)]
    + [("softmax", mixing) for mixing in ("layer", "sum", None)],
)
def test_what_mixes_behind_attention_is_named_and_nothing_else(attending, mixing):
    behind, way = MIXING[mixing]
    seen = audited(Behind(ATTENDING[attending], behind), IDS)
    assert seen.sites
    assert [(mixer.path, mixer.way) for mixer in seen.mixers] == ([("behind", way)] if way else [])


@pytest.mark.parametrize("behind", [False, True])
def test_windows_that_begin_elsewhere_in_each_layer_do_not_mix_by_that(behind):
    torch.manual_seed(0)
    last = turned(nn.Conv1d(16, 16, 3, padding=1)) if behind else nn.Linear(16, 16)
    layers = nn.Linear(16, 16), windows(0), windows(2), last
    seen = audited(nn.Sequential(*layers), torch.randn(1, 16, 16))
    assert [mixer.path for mixer in seen.mixers] == ["3"] * behind


def test_a_sparse_product_is_a_way_to_mix_and_no_failure():
    edges = torch.eye(6).roll(1, 0).add(torch.eye(6)).to_sparse()

    def graph(m, states):
        """Attention, and sums along edges that are kept sparse."""
        return torch.sparse.mm(edges, (states + m.attend(states)[0])[0])[None]

    model = nn.Sequential(Of(graph, attend=modules.ListedHeads(heads=2)))
    seen = audited(model, torch.randn(1, 6, 16))
    assert [(mixer.path, mixer.way) for mixer in seen.mixers] == [("0", "a matrix product")]


WIDE = 64


class Layer(nn.Linear):
    """A layer of each token alone."""


def leaking(much, little):
    """Attention, and a leak behind it.

    It adds to the last token a little of what two others hold, each in a feature of its own, and sums it.
    """
    torch.manual_seed(0)
    shares = torch.full((2, WIDE), little)
    shares[0, 0] = shares[1, 1] = much

    def leak(m, x):
        mixed = x.clone()
        mixed[:, -1] += (x[:, :2].abs().sum(-1, keepdim=True) * shares).sum(1)
        return m.layer(mixed)

    def run(m, ids):
        x = m.embed(ids)
        return m.leak(x + m.attend(x, x, x, need_weights=False)[0])

    embed, layer = nn.Embedding(99, WIDE), Layer(WIDE, WIDE, bias=False)
    nn.init.constant_(layer.weight, 1 / WIDE)
    attend = nn.MultiheadAttention(WIDE, 4, batch_first=True)
    return Of(run, embed=embed, leak=Of(leak, layer=layer), attend=attend)


@pytest.mark.parametrize(("much", "little", "blamed"), [(2e-6, 2e-6, []), (1e-4, 1e-7, ["leak"])])
def test_what_is_less_than_rounding_mixes_nothing_though_a_layer_sums_it(much, little, blamed):
    assert [mixer.path for mixer in audited(leaking(much, little), IDS).mixers] == blamed
