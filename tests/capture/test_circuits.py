"""What each head reads, against the slices of the weights that each family is documented to keep."""

import pytest
import torch
from torch import nn

from attnscope.capture import recording
from attnscope.capture.projections import Circuits
from attnscope.models import load
from tests.capture.test_projections import ALL
from tests.capture.tiny import inputs

HEADS, SIZE = 4, 8


def _reads(model, given):
    circuits = Circuits()
    with torch.inference_mode(), circuits.watching(model), recording(model, [circuits]):
        model(**given)
    return circuits


def _separate(*names):
    """Three linear layers, the rows of each head under each other; key heads are shared by neighbours."""

    def parts(layer):
        for name in names:
            weight = layer.get_submodule(name).weight
            heads = weight.reshape(-1, SIZE, weight.shape[-1]).mT
            yield heads.repeat_interleave(HEADS // len(heads), 0)

    return parts


def _gpt2(layer):
    for weight in layer.attn.c_attn.weight.chunk(3, 1):  # [width, head·size]
        yield weight.unflatten(1, (HEADS, SIZE)).transpose(0, 1)


def _neox(layer):
    weight = layer.attention.query_key_value.weight.unflatten(0, (HEADS, 3, SIZE))
    yield from weight.mT.unbind(1)


def _falcon(layer):
    """Several queries, and one key and value for all of them."""
    weight = layer.self_attention.query_key_value.weight.unflatten(0, (HEADS + 2, SIZE)).mT
    yield weight[:HEADS]
    yield weight[HEADS].expand(HEADS, -1, -1)
    yield weight[HEADS + 1].expand(HEADS, -1, -1)


LLAMA = _separate("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
DOCUMENTED = {
    "gpt2": ("h", _gpt2),
    "gpt-neox": ("layers", _neox),
    "falcon": ("h", _falcon),
    "llama": ("layers", LLAMA),
    "mistral": ("layers", LLAMA),
    "qwen2": ("layers", LLAMA),
    "phi": ("layers", LLAMA),
    "opt": ("decoder.layers", LLAMA),
    "bert": (
        "encoder.layer",
        _separate("attention.self.query", "attention.self.key", "attention.self.value"),
    ),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_projections_are_the_slices_that_the_family_documents(name):
    family = ALL[name]
    torch.manual_seed(0)
    model = family.build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    circuits = _reads(model, inputs(family.inputs))
    path, parts = DOCUMENTED[name]
    layers = model.get_submodule(path)
    assert len(circuits.reads) == len(layers)
    for layer, reads in zip(layers, circuits.reads.values(), strict=True):
        for ours, theirs in zip((reads.query, reads.key, reads.value), parts(layer), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["own", "own-causal"])
def test_a_weight_that_the_module_multiplies_with_itself_is_found_too(name):
    model = load(name)
    circuits = _reads(model.module, model.prepare("The cat sat.").inputs)
    modules = [each for each in model.module.modules() if hasattr(each, "in_proj_weight")]
    for module, reads in zip(modules, circuits.reads.values(), strict=True):
        weights = module.in_proj_weight.chunk(3)
        for ours, weight in zip((reads.query, reads.key, reads.value), weights, strict=True):
            assert torch.equal(ours, weight.unflatten(0, (module.num_heads, -1)).mT)


def test_what_cannot_be_found_is_none():
    family = ALL["gemma2"]  # its kernel shows weights, and neither queries nor keys
    model = family.build()
    model.set_attn_implementation("eager")
    (reads, *_) = _reads(model, inputs("text")).reads.values()
    assert reads.query is None
    assert reads.key is None
    assert reads.value is not None
