"""Tiny random models of five shapes, each with two inputs that differ, its layers and its projections."""

from pathlib import Path
from typing import Any, NamedTuple

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
