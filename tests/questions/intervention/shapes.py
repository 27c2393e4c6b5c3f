"""Tiny random models of five shapes, each with two inputs that differ, its layers and its projections."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from attnscope.models import ModelInput, load
from tests.models.folders import t5
from tests.models.images import VIT, WHOLE, save_images, save_noise
from tests.questions.intervention.test_importance import SIZES, bert, gpt2, saved

TEXT, OTHER = "The cat sat on the mat because it was tired.", "The mat sat on the mat because it was tired."


class Shaped(NamedTuple):
    """``stacks`` are the lists of layers, ``projections`` what mixes the heads of each attention call."""

    model: Any
    clean: ModelInput
    corrupt: ModelInput
    edge: str
    stacks: list
    projections: list


def _texts(folder, edge, find):
    model = load(folder, predicting=True)
    return Shaped(model, model.prepare(TEXT), model.prepare(OTHER), edge, *find(model.writer))


def make_gpt2(folder):
    return _texts(
        gpt2(folder),
        "it -> cat",
        lambda net: ([net.transformer.h], [each.attn.c_proj for each in net.transformer.h]),
    )


def make_bert(folder):
    return _texts(
        bert(folder),
        "it -> cat",
        lambda net: ([net.bert.encoder.layer], [e.attention.output.dense for e in net.bert.encoder.layer]),
    )


def make_llama(folder):
    config = transformers.LlamaConfig(vocab_size=8192, num_key_value_heads=2, **SIZES)
    return _texts(
        saved(folder, transformers.LlamaForCausalLM(config)),
        "it -> cat",
        lambda net: ([net.model.layers], [each.self_attn.o_proj for each in net.model.layers]),
    )


def make_t5(folder):
    place = t5(folder)
    transformers.T5ForConditionalGeneration.from_pretrained(place).save_pretrained(place)
    model = load(place, predicting=True)
    clean, corrupt = (model.prepare(text, "the cat sat") for text in ("the cat sat", "the mat sat"))
    encoder, decoder = model.writer.encoder.block, model.writer.decoder.block
    projections = [each.layer[0].SelfAttention.o for each in encoder]
    for each in decoder:
        projections += [each.layer[0].SelfAttention.o, each.layer[1].EncDecAttention.o]
    return Shaped(model, clean, corrupt, "sat -> the", [encoder, decoder], projections)


def make_vit(folder):
    network = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT))
    model = load(save_images(folder, network, "ViTImageProcessor", WHOLE), predicting=True)
    clean, corrupt = (
        model.prepare_image(save_noise(Path(folder) / f"{seed}.png", 48, 80, seed)) for seed in range(2)
    )
    layers = model.writer.vit.layers
    return Shaped(model, clean, corrupt, "0 -> 3", [layers], [each.attention.o_proj for each in layers])


SHAPES = {"gpt2": make_gpt2, "bert": make_bert, "llama": make_llama, "t5": make_t5, "vit": make_vit}


@pytest.fixture(scope="module", params=SHAPES)
def shaped(request, tmp_path_factory):
    """A tiny random model of a shape, in float64."""
    made = SHAPES[request.param](tmp_path_factory.mktemp(request.param))
    for module in list(made.model.writer.modules()):
        for name, part in list(module.named_children()):
            if hasattr(part, "variance_epsilon"):  # it rounds to float32 in every model; torch's does not
                setattr(module, name, torch.nn.RMSNorm(part.weight.shape, part.variance_epsilon))
    made.model.writer.double()
    for prepared in (made.clean, made.corrupt):
        pixels = prepared.inputs.get("pixel_values")
        if pixels is not None:
            prepared.inputs["pixel_values"] = pixels.double()
    return made


class Hooked:
    """A model's passes with plain hooks on modules; the score is the log-probability of one prediction."""

    def __init__(self, shaped, prediction):
        self.shaped, self.prediction = shaped, prediction

    def score(self, prepared, hooks=()):
        """The score of a pass, with ``hooks`` as in ``log_shares``."""
        return self.log_shares(prepared, hooks)[self.prediction.chosen].item()

    def log_shares(self, prepared, hooks=()):
        """The log-probability of every word or class.

        ``hooks``: pairs of a module and a function of its first input, or a function of its output.
        """
        handles = []
        for module, kind, change in hooks:
            if kind == "input":
                handles.append(
                    module.register_forward_pre_hook(lambda _, given, c=change: (c(given[0]), *given[1:]))
                )
            else:
                handles.append(module.register_forward_hook(lambda _, __, out, c=change: _first(out, c)))
        try:
            with torch.no_grad():
                network, at = self.shaped.model.writer, self.prediction.at
                scores = network(**prepared.inputs, **getattr(prepared, "settings", {})).logits[0]
                return (scores if at is None else scores[at]).log_softmax(-1)
        finally:
            for handle in handles:
                handle.remove()

    def seen(self, prepared, modules, kind):
        """What each module received, or gave."""
        kept = []
        self.score(
            prepared, [(each, kind, lambda given: (kept.append(given.clone()), given)[1]) for each in modules]
        )
        return kept


def _first(output, change):
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)


def put(other, head, size):
    """Replace the columns of one head in what a projection receives."""

    def change(given):
        given = given.clone()
        given[..., head * size : (head + 1) * size] = other[..., head * size : (head + 1) * size]
        return given

    return change


def close(found, expected):
    assert found == pytest.approx(expected, abs=1e-5)


def sent(shaped, head):
    """Which projection gets what a head gives; decoders attend to themselves, then across."""
    if len(shaped.stacks) == 1 or head.kind == "encoder":
        return head.layer, head.head
    return len(shaped.stacks[0]) + 2 * head.layer + (head.kind == "cross"), head.head
