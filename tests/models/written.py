"""A tiny folder of two models joined as one: an encoder sees a picture, a decoder writes what is in it."""

from pathlib import Path

import torch
import transformers as t

from tests.models.vision_language import SQUARE, make_tokenizer

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def vision_encoder_decoder(folder: Path) -> str:
    """As TrOCR: patches of a square, and a decoder that looks at them across."""
    words = make_tokenizer()
    encoder = t.ViTConfig(**SIZES, image_size=56, patch_size=14)
    decoder = t.BertConfig(vocab_size=len(words), is_decoder=True, add_cross_attention=True, **SIZES)
    torch.manual_seed(0)
    model = t.VisionEncoderDecoderModel(encoder=t.ViTModel(encoder), decoder=t.BertLMHeadModel(decoder))
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, 1
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    model.save_pretrained(folder)
    t.TrOCRProcessor(t.ViTImageProcessorPil(size=SQUARE), words).save_pretrained(folder)
    return str(folder)
