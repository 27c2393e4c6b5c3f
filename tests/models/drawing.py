"""Tiny folders of models for which a picture becomes words of their vocabulary: no gradient passes."""

from typing import Any

import transformers as t

from tests.models.vision_language import SQUARE, _id, _text, make_tokenizer

CODES = 16
"""Words for what is seen."""

DRAWN = {"embed_dim": 16, "base_channels": 32, "num_res_blocks": 1, "attn_resolutions": []}


def chameleon() -> tuple[Any, Any]:
    """Chosen by what is nearest."""
    letters = ["".join("ABCDEFGHIJ"[int(digit)] for digit in str(number)) for number in range(CODES)]
    words = make_tokenizer("<image>", "<racm3:break>", "<eoss>", *[f"IMGIMG{name}Z" for name in letters])
    sizes = {"num_embeddings": CODES, "latent_channels": 32, "resolution": 56, "channel_multiplier": [1, 1]}
    config = _text(
        t.ChameleonConfig,
        words,
        vocabulary_map=words.get_vocab(),
        vq_config=DRAWN | sizes,
        image_token_id=_id(words, "<image>"),
    )
    images = t.ChameleonImageProcessor(size={"shortest_edge": 56}, crop_size=SQUARE)
    return config, t.ChameleonProcessor(images, words, image_seq_length=784)


def emu3() -> tuple[Any, Any]:
    """The same, of any proportions, with a word for the end of each row."""
    signs = {"boi": "<|image start|>", "eoi": "<|image end|>", "image_wrapper": "<|image token|>"}
    named = {f"{name}_token": sign for name, sign in (signs | {"eof": "<|extra_201|>"}).items()}
    codes = [f"<|visual token {number:06}|>" for number in range(CODES)]
    words = make_tokenizer(*codes, "<|extra_200|>", image_token="<image>", **named)
    sizes = {"codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "channel_multiplier": [1, 1, 1, 1]}
    config = t.Emu3Config(
        text_config=_text(t.Emu3TextConfig, words, bos_token_id=2, eos_token_id=3),
        vq_config=DRAWN | sizes | {"hidden_size": 32},
        vocabulary_map=words.get_vocab(),
    )
    images = t.Emu3ImageProcessor(min_pixels=32 * 32, max_pixels=64 * 64)
    return config, t.Emu3Processor(images, words)
