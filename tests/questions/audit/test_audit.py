"""An audit names the modules that mix tokens outside the attention that is shown, and no others."""

from functools import cache

import pytest
import torch
import transformers as hf
from torch import nn

from attnscope.errors import InputError
from attnscope.models import ModelInput, load
from attnscope.questions.audit import audit
from tests.capture.hooks.test_kernels import Flexible, is_past
from tests.capture.lineage import test_pieces, test_standing
from tests.capture.tiny import FAMILIES, inputs
from tests.models.folders import gpt2
from tests.questions.audit.test_ways import Shift
from tests.questions.audit.tiny import IDS, SIZES, Bare, audited, missing

FEW = IDS[:, :6]
"""Tokens for models of many functions: each token is a pass."""


def of_family(name):
    tiny = FAMILIES[name]
    fields = inputs(tiny.inputs, batch=1, length=6)
    fields.pop("attention_mask", None)
    return audited(tiny.build(), **fields)


@cache
def nothing_missed(name):
    """The audit of a family with all of its capture, made once."""
    return of_family(name)


CALLS = {"bert": 3, "gpt2": 3, "mistral": 3, "gpt-oss": 3, "deberta-v2": 2, "albert": 3, "t5": 6, "vit": 2}


@pytest.mark.parametrize("name", CALLS)
def test_a_model_that_mixes_by_attention_alone_is_said_to(name):
    said = "all mixing between tokens goes through the attention that is shown"
    assert nothing_missed(name).sentences == (f"{said}: {CALLS[name]} attention calls",)


@pytest.mark.parametrize(
    ("name", "place"),
    [("bert", 0), ("vit", -1)]
    + [pytest.param(*each, marks=pytest.mark.nightly) for each in (("t5", -1), ("deberta-v2", 0))],
)
@pytest.mark.slow
def test_one_layer_that_the_capture_misses_is_named_exactly(name, place):
    sites = nothing_missed(name).sites
    with missing(sites[place].name):
        seen = of_family(name)
    assert [mixer.path for mixer in seen.mixers] == [sites[place].name]
    assert seen.sentences[-1] == f"1 of {len(sites)} attention calls were not captured"


def test_convolutions_beside_attention_are_named_and_their_layers():
    seen = audited(hf.ConvBertModel(hf.ConvBertConfig(**SIZES, embedding_size=32)), input_ids=FEW)
    assert len(seen.sites) == 3
    assert (
        "layers 0-2, encoder.layer.*.attention.self.key_conv_attn_layer (SeparableConv1D), "
        "mix tokens by a convolution as well"
    ) in seen.sentences
    assert {mixer.layer for mixer in seen.mixers} == {0, 1, 2}


def test_state_space_layers_of_a_hybrid_are_named_once():
    config = hf.JambaConfig(
        **SIZES,
        num_key_value_heads=2,
        num_experts=2,
        use_mamba_kernels=False,
        attn_layer_period=3,
        attn_layer_offset=1,
        mamba_d_state=8,
    )
    seen = audited(hf.JambaModel(config), input_ids=FEW)
    assert [site.layer for site in seen.sites] == [1]
    assert seen.sentences == (
        "layers 0, 2, layers.*.mamba (JambaMambaMixer), mix tokens by a state-space model as well",
    )


def test_a_model_without_attention_is_audited_too():
    config = hf.FNetConfig(hidden_size=32, num_hidden_layers=3, intermediate_size=64, vocab_size=99)
    seen = audited(hf.FNetModel(config), input_ids=FEW)
    assert seen.sites == ()
    assert [mixer.path for mixer in seen.mixers] == [f"encoder.layer.{n}.fourier.self" for n in range(3)]


class Latents(nn.Module):
    """Learned queries that look at a text and then, unseen by any capture, at each other."""

    def __init__(self, mixes):
        super().__init__()
        self.embed = nn.Embedding(99, 16)
        self.queries = nn.Parameter(torch.randn(5, 16))
        self.read = nn.MultiheadAttention(16, 2, batch_first=True)
        self.layer = nn.Linear(5, 5) if mixes else nn.Linear(16, 16)
        self.mixes = mixes

    def forward(self, ids):
        states = self.embed(ids)
        latents = self.read(self.queries.expand(len(ids), -1, -1), states, states)[0]
        return self.layer(latents.mT).mT if self.mixes else self.layer(latents)


def test_what_mixes_learned_queries_is_named():
    assert audited(Latents(False), IDS).complete
    seen = audited(Latents(True), IDS)
    assert [mixer.path for mixer in seen.mixers] == ["layer"]


@pytest.mark.parametrize("way", test_standing.INSIDE[::3], ids=lambda way: way.__name__)
def test_what_mixes_inside_of_each_token_mixes_no_tokens(way, monkeypatch):
    monkeypatch.setattr(test_standing, "COUNT", 8)  # and so tokens, enough to be changed
    torch.manual_seed(0)
    assert audited(test_standing.Model(way).eval(), torch.randn(1, 8, test_standing.SIZE)).complete


def test_queries_that_choose_among_the_streams_of_their_own_token_are_not_moved_by_hand():
    class Streams(nn.Module):
        """Each token asks its own states of two layers, behind attention over the tokens."""

        def __init__(self):
            super().__init__()
            self.attend, self.layers = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 16)
            self.choose = Choose()

        def forward(self, states):
            return states + self.choose(states, self.layers(self.attend(states, states, states)[0]))

    class Choose(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Parameter(torch.randn(1, 16)), nn.Linear(16, 16)

        def forward(self, *layers):
            states = torch.stack(layers, 2)  # [text, token, layer, feature]
            query = self.query.expand(*states.shape[:2], 1, -1)
            return nn.functional.scaled_dot_product_attention(query, self.key(states), states)[:, :, 0]

    torch.manual_seed(0)
    seen = audited(Streams().eval(), torch.randn(1, 9, 16))
    assert seen.complete
    assert [site.name for site in seen.sites] == ["attend"]


def test_attention_from_channel_to_channel_is_not_shown_and_so_mixes():
    layer = test_pieces.BetweenChannels(None, "softmax")
    seen = audited(nn.Sequential(layer), torch.randn(1, test_pieces.COUNT, test_pieces.SIZE))
    assert seen.sentences == (
        "layer 0, * (BetweenChannels), mixes tokens by attention from channel to channel as well",
    )


def test_states_as_numbers_are_audited_like_ids():
    states = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))
    assert audited(nn.Sequential(nn.Linear(16, 16)), states).complete
    assert [mixer.path for mixer in audited(nn.Sequential(Shift()), states).mixers] == ["0"]


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
    assert audit(model, model.prepare("The cat sat on the mat because it was tired.")).complete


def test_kernels_that_modules_call_themselves_are_held():
    seen = audited(nn.Sequential(Flexible(is_open=is_past)).eval(), torch.randn(1, 7, 16))
    assert (len(seen.sites), seen.complete) == (1, True)
