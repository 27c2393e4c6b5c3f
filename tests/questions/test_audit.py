"""An audit names exactly the modules that mix tokens outside of the shown attention, and how."""

from collections import UserDict
from functools import cache
from unittest import mock

import pytest
import torch
import transformers as hf
from torch import nn

from attnscope.capture.freeze import find_tensors, with_tensors
from attnscope.capture.recorder import Recorder
from attnscope.errors import InputError
from attnscope.models import ModelInput, load
from attnscope.models.model import Model
from attnscope.questions.audit import audit
from tests.capture import modules
from tests.capture.hooks.test_kernels import OPEN, Flexible
from tests.capture.lineage import test_pieces, test_token_axis
from tests.capture.modules import FunctionModule
from tests.capture.placing.mixing_modules import Stream, grouped_by_an_axis
from tests.capture.tiny import FAMILIES, inputs
from tests.models.folders import gpt2

IDS = torch.randint(5, 55, (1, 6), generator=torch.Generator().manual_seed(1))
STATES = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(0))


class Bare(Model):
    """A module without a tokenizer."""

    def __init__(self, module):
        super().__init__(type(module).__name__, module, None)

    def prepare(self, *texts, **how):
        raise NotImplementedError


def audited(module, *arguments, **inputs):
    """The audit of a module on these tensors."""
    return audit(Bare(module), ModelInput(inputs, {}, (), arguments=arguments))


def missing(path):
    """A capture that misses whatever attends at one module."""
    add = Recorder.add

    def add_others(recorder, capture, name, *more):
        if name != path:
            return add(recorder, capture, name, *more)
        recorder.events += 1  # so that nobody looks for it in what the module returns

    return mock.patch.object(Recorder, "add", add_others)


@cache
def of_family(name, missed=None):
    """The audit of a family, with a capture that may miss one module."""
    tiny = FAMILIES[name]
    fields = inputs(tiny.inputs, batch=1, length=6)
    fields.pop("attention_mask", None)
    with missing(missed):
        return audited(tiny.build(), **fields)


ALL_SHOWN = "all mixing between tokens goes through the attention that is shown"
CALLS = {"bert": 3, "gpt-oss": 3, "deberta-v2": 2, "albert": 3, "t5": 6, "vit": 2}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", CALLS)
def test_audit_confirms_models_that_mix_by_attention_alone(name):
    assert of_family(name).sentences == (f"{ALL_SHOWN}: {CALLS[name]} attention calls",)


NIGHTLY = [pytest.param(name, marks=pytest.mark.nightly) for name in ("vit", "t5", "deberta-v2")]


@pytest.mark.parametrize("name", ["bert", *NIGHTLY])
@pytest.mark.slow
def test_audit_names_exactly_the_uncaptured_layer(name):
    path = of_family(name).sites[-1].name
    seen = of_family(name, path)
    assert [mixer.path for mixer in seen.mixers] == [path]
    assert seen.sentences[-1] == f"1 of {CALLS[name]} attention calls were not captured"


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
MAMBA = {"num_key_value_heads": 2, "num_experts": 2, "use_mamba_kernels": False, "mamba_d_state": 8}
OTHERS = {  # more of the config, the layers that attend, and what mixes tokens besides
    "ConvBert": (
        {"embedding_size": 32},
        [0, 1],
        [
            f"layers 0-1, encoder.layer.*.attention.{module}, mix tokens by a convolution as well"
            for module in ("self (ConvBertSelfAttention)", "self.key_conv_attn_layer (SeparableConv1D)")
        ],
    ),
    "Jamba": (
        {"num_hidden_layers": 3, "attn_layer_period": 3, "attn_layer_offset": 1, **MAMBA},
        [1],
        ["layers 0, 2, layers.*.mamba (JambaMambaMixer), mix tokens by a state-space model as well"],
    ),
    "FNet": (
        {},
        [],
        [
            "layers 0-1, encoder.layer.*.fourier.self (FNetBasicFourierTransform), mix tokens by "
            "a Fourier transform as well"
        ],
    ),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", OTHERS)
def test_audit_names_each_other_mixer_once(name):
    more, attend, said = OTHERS[name]
    config = getattr(hf, f"{name}Config")(**SIZES | {"vocab_size": 99} | more)
    seen = audited(getattr(hf, f"{name}Model")(config), input_ids=IDS)
    assert [site.layer for site in seen.sites] == attend
    assert list(seen.sentences) == said


def torchs(size=16, heads=2):
    return nn.MultiheadAttention(size, heads, batch_first=True)


def turned(layer):
    """A layer over positions instead of features."""
    return FunctionModule(lambda m, states: m.layer(states.mT).mT, layer=layer)


def convolved():
    return turned(nn.Conv1d(16, 16, 3, padding=1))


def shift():
    return FunctionModule(lambda m, states: states + states.roll(1, 1))


class Sort(nn.Module):
    """States in the order of their experts."""

    def forward(self, states, scores):
        chosen = scores.argmax(-1)
        order = chosen.argsort(stable=True)
        return states[order], order, torch.bincount(chosen, minlength=3).tolist()


def put_back(m, states):
    """Tokens are sorted by their experts, which run on one stretch each, and put back into their order."""
    flat = states.flatten(0, 1)
    sorted_states, order, counts = m.sort(flat, m.router(flat))
    parts = zip(m.experts, sorted_states.split(counts), strict=True)
    made = torch.cat([expert(part) for expert, part in parts])
    return torch.zeros_like(flat).index_add(0, order, made).view_as(states)


class Reader(nn.Module):
    """Attention, and beside it one more way in which tokens meet."""

    def __init__(self, meet):
        super().__init__()
        self.embed, self.grams = nn.Embedding(99, 16), nn.Embedding(99, 16)
        self.attend, self.recur = torchs(), nn.GRU(16, 16, batch_first=True)
        self.join, self.behind, self.router = nn.Linear(32, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.sort, self.meet = Sort(), meet
        self.routed = FunctionModule(put_back, sort=Sort(), router=self.router, experts=experts)

    def forward(self, input_ids, **given):
        states = self.embed(input_ids)
        states = states + self.attend(states, states, states, need_weights=False)[0]
        return self.behind(self.meet(self, input_ids, states, *given.values()))


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
        "a selection of tokens",
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
    "sorted": (
        lambda m, ids, states: m.sort(states[0], m.router(states[0]))[0],
        "sort (Sort)",
        "a selection of tokens",
    ),
    "sorted and put back": (lambda m, ids, states: m.routed(states), None, None),
    "moved": (lambda m, ids, states: states.roll(1, 1).flip(1), None, None),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", WAYS)
def test_audit_names_the_mixing_operation(name):
    torch.manual_seed(0)
    meet, where, way = WAYS[name]
    said = f"{where} mixes tokens by {way} as well" if way else f"{ALL_SHOWN}: 1 attention call"
    assert audited(Reader(meet), IDS).sentences == (said,)


@pytest.mark.parametrize("name", ["merge_sizes", "timesteps", "t_cond"])
def test_audit_ignores_inputs_that_are_not_per_token(name):
    model = Reader(lambda m, ids, states, sizes: states * sizes.float().sum())
    seen = audited(model, input_ids=IDS, **{name: torch.tensor([2, 3])})
    assert seen.complete, seen.sentences


def test_audit_reads_boxes_and_series_of_one_channel():
    """Where a token stands is no other token; the last axis of a series may be one number wide."""
    both = FunctionModule(lambda m, states, boxes: states + m.place(boxes), place=nn.Linear(4, 16))
    boxes = FunctionModule(
        lambda m, states, visual_pos: m.attend(m.both(states, visual_pos))[0],
        attend=modules.ListedHeads(heads=2),
        both=both,
    )
    seen = audited(boxes.eval(), states=STATES, visual_pos=torch.rand(*STATES.shape[:2], 4))
    assert seen.complete, seen.sentences
    series = FunctionModule(
        lambda m, past_values: m.attend(m.embed(past_values))[0],
        attend=modules.ListedHeads(heads=2),
        embed=nn.Linear(1, 16),
    )
    seen = audited(series.eval(), past_values=STATES[..., :1])
    assert seen.complete, seen.sentences


def first(m, states):
    return m.attend(states)[0]


ATTENDING = {
    "kernel": (torchs, lambda m, states: m.attend(states, states, states)[0]),
    "softmax": (modules.softmaxed, first),
    "einsum": (modules.SequenceFirst, lambda m, states: first(m, states.transpose(0, 1)).transpose(0, 1)),
    "single heads": (lambda: modules.ListedHeads(heads=2), first),
    "layers": (lambda: modules.ListedLayers(layers=2), first),
    "grouped": (lambda: Stream(grouped_by_an_axis), lambda m, states: m.attend(states)),
}
MIXING = {
    "convolution": (convolved, "a convolution"),
    "layer": (lambda: turned(nn.Linear(6, 6)), "a matrix product"),
    "sum": (shift, "a sum"),
    None: (lambda: nn.Linear(16, 16), None),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("attending", "mixing"),
    [*((attending, "convolution") for attending in ATTENDING)]
    + [("softmax", mixing) for mixing in ("layer", "sum", None)],
)
def test_audit_names_only_the_mixer_after_attention(attending, mixing):
    torch.manual_seed(0)
    (attend, run), (behind, way) = ATTENDING[attending], MIXING[mixing]
    layers = nn.Embedding(99, 16), FunctionModule(run, attend=attend()), nn.LayerNorm(16), behind()
    seen = audited(nn.Sequential(*layers), IDS)
    assert seen.sites
    assert [(mixer.path, mixer.way) for mixer in seen.mixers] == ([("3", way)] if way else [])


def windows(begin):
    """Attention in windows of four tokens, which begin so many tokens later."""

    def run(m, states):
        q, k, v = m.qkv(states.roll(-begin, 1).unflatten(1, (-1, 4))).chunk(3, -1)
        return ((q @ k.mT).softmax(-1) @ v).flatten(1, 2).roll(begin, 1)

    return FunctionModule(run, qkv=nn.Linear(16, 48))


def shifted_windows(last):
    return nn.Sequential(nn.Linear(16, 16), windows(0), windows(2), last)


def latents(layer):
    """Learned queries that look at a text and then, unseen by any capture, go through a layer."""

    def run(m, states):
        return m.layer(m.attend(m.queries.expand(len(states), -1, -1), states, states)[0])

    return FunctionModule(run, queries=nn.Parameter(torch.randn(5, 16)), layer=layer, attend=torchs())


def streams():
    """Each token asks its own states of two layers, behind attention over the tokens."""

    def choose(m, *layers):
        states = torch.stack(layers, 2)  # [text, token, layer, feature]
        query = m.query.expand(*states.shape[:2], 1, -1)
        return nn.functional.scaled_dot_product_attention(query, m.key(states), states)[:, :, 0]

    def run(m, states):
        return states + m.choose(states, m.layers(m.attend(states, states, states)[0]))

    asks = FunctionModule(choose, query=nn.Parameter(torch.randn(1, 16)), key=nn.Linear(16, 16))
    return FunctionModule(run, choose=asks, attend=torchs(), layers=nn.Linear(16, 16))


def along_edges():
    """Attention, and sums along edges that are kept sparse."""
    edges = torch.eye(16).roll(1, 0).add(torch.eye(16)).to_sparse()

    def run(m, states):
        return torch.sparse.mm(edges, (states + first(m, states))[0])[None]

    return nn.Sequential(FunctionModule(run, attend=modules.ListedHeads(heads=2)))


def total():
    return nn.Sequential(nn.Linear(16, 16), FunctionModule(lambda m, states: (states.sum(), states)))


BUILT = {  # how many attention calls there are, and which modules mix besides, by what
    "a layer": (lambda: nn.Linear(16, 16), 0, []),
    "a sum": (lambda: nn.Sequential(shift()), 0, [("0", "a sum")]),
    "a number for a whole batch": (total, 0, [("1", "pooling")]),
    "learned queries": (lambda: latents(nn.Linear(16, 16)), 1, []),
    "learned queries, mixed": (lambda: latents(turned(nn.Linear(5, 5))), 1, [("layer", "a matrix product")]),
    "a choice among streams of a token": (streams, 1, []),
    "a kernel that modules call themselves": (lambda: nn.Sequential(Flexible(is_open=OPEN["past"])), 1, []),
    "windows that begin elsewhere": (lambda: shifted_windows(nn.Linear(16, 16)), 2, []),
    "windows, mixed": (lambda: shifted_windows(convolved()), 2, [("3", "a convolution")]),
    "a sparse product": (along_edges, 1, [("0", "a matrix product")]),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", BUILT)
def test_float_states_are_audited_like_ids(name):
    torch.manual_seed(0)
    build, calls, mixers = BUILT[name]
    seen = audited(build().eval(), STATES)
    assert len(seen.sites) == calls
    assert [(mixer.path, mixer.way) for mixer in seen.mixers] == mixers


@pytest.mark.parametrize("way", test_token_axis.INSIDE[::3], ids=lambda way: way.__name__)
def test_audit_ignores_mixing_within_tokens(way, monkeypatch):
    monkeypatch.setattr(test_token_axis, "COUNT", 8)  # and so tokens, enough to be changed
    torch.manual_seed(0)
    assert audited(test_token_axis.Model(way).eval(), torch.randn(1, 8, test_token_axis.SIZE)).complete


def test_audit_names_channel_attention():
    layer = Stream(test_pieces.between_channels)
    seen = audited(nn.Sequential(layer), torch.randn(1, test_pieces.COUNT, test_pieces.SIZE))
    assert seen.sentences == ("layer 0, * (Stream), mixes tokens by attention between channels as well",)


class Layer(nn.Linear):
    """A layer of each token alone."""


@pytest.mark.parametrize(("much", "little", "blamed"), [(2e-6, 2e-6, []), (1e-4, 1e-7, ["leak"])])
def test_audit_ignores_differences_below_rounding(much, little, blamed):
    """Behind attention the last token gets a little of what two others hold, each in its own feature."""
    torch.manual_seed(0)
    shares = torch.full((2, 64), little)
    shares[0, 0] = shares[1, 1] = much

    def leak(m, states):
        mixed = states.clone()
        mixed[:, -1] += (states[:, :2].abs().sum(-1, keepdim=True) * shares).sum(1)
        return m.layer(mixed)

    def run(m, ids):
        states = m.embed(ids)
        return m.leak(states + m.attend(states, states, states, need_weights=False)[0])

    layer = Layer(64, 64, bias=False)
    nn.init.constant_(layer.weight, 1 / 64)
    model = FunctionModule(
        run, embed=nn.Embedding(99, 64), leak=FunctionModule(leak, layer=layer), attend=torchs(64, 4)
    )
    assert [mixer.path for mixer in audited(model, IDS).mixers] == blamed


def test_audit_restores_the_model():
    model = FAMILIES["bert"].build()
    with torch.inference_mode():
        before = model(IDS).last_hidden_state
        audited(model, IDS)
        assert torch.equal(model(IDS).last_hidden_state, before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_audit_refuses_inputs_without_tokens_and_recorded_passes(tmp_path):
    with pytest.raises(InputError, match="a text of several tokens"):
        audited(nn.Linear(3, 3), x=torch.ones(1, 3))
    model = load(gpt2(tmp_path), generative=True)
    with pytest.raises(InputError, match="give a text, not a recorded pass"):
        audit(model, model.generate(model.prepare("The cat"), 2))


def test_bundled_models_mix_by_attention_alone(own, causal):
    assert audit(own, own.prepare("The cat sat.")).complete
    assert audit(causal, causal.prepare("The cat sat.")).complete


class Parts(tuple):
    """A tuple that torch does not know."""


def test_tensors_in_custom_containers_are_replaced():
    first, second, third = torch.rand(3, 2)
    value = Parts([first, UserDict({"states": [second]}), 7])
    assert [id(each) for each in find_tensors(value)] == [id(first), id(second)]
    put = with_tensors(value, iter([third, first]))
    assert type(put) is Parts
    assert [id(each) for each in find_tensors(put)] == [id(third), id(first)]
