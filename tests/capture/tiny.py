"""Tiny random models of many families, with inputs, and what they say about their own attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers as hf

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32}
DECODER = {**SIZES, "num_hidden_layers": 3, "num_key_value_heads": 2, "max_position_embeddings": 64}
BART = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}


@dataclass(frozen=True)
class Tiny:
    """One family: how to build its config and its model, and what to feed it."""

    config: Callable[[], object]
    model: str
    inputs: str = "text"

    def build(self, attention: str | None = None):
        """A random model, the same numbers every time."""
        torch.manual_seed(0)
        options = {} if attention is None else {"attn_implementation": attention}
        return getattr(hf, self.model)._from_config(self.config(), **options).eval()


FAMILIES = {
    "bert": Tiny(lambda: hf.BertConfig(**SIZES, num_hidden_layers=3), "BertModel"),
    "albert": Tiny(
        lambda: hf.AlbertConfig(**SIZES, num_hidden_layers=3, embedding_size=16, inner_group_num=1),
        "AlbertModel",
    ),
    "modernbert": Tiny(
        lambda: hf.ModernBertConfig(**SIZES, num_hidden_layers=4, local_attention=6, pad_token_id=0),
        "ModernBertModel",
    ),
    "deberta-v2": Tiny(
        lambda: hf.DebertaV2Config(
            **SIZES,
            num_hidden_layers=2,
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["p2c", "c2p"],
        ),
        "DebertaV2Model",
    ),
    "gpt2": Tiny(lambda: hf.GPT2Config(vocab_size=99, n_embd=32, n_layer=3, n_head=4), "GPT2Model"),
    "llama": Tiny(lambda: hf.LlamaConfig(**DECODER), "LlamaModel"),
    "mistral": Tiny(lambda: hf.MistralConfig(**DECODER, sliding_window=4), "MistralModel"),
    "gemma2": Tiny(
        lambda: hf.Gemma2Config(**DECODER, head_dim=8, sliding_window=4, attn_logit_softcapping=0.5),
        "Gemma2Model",
    ),
    "gpt-oss": Tiny(
        lambda: hf.GptOssConfig(
            **DECODER, head_dim=8, sliding_window=4, num_local_experts=4, num_experts_per_tok=2
        ),
        "GptOssModel",
    ),
    "t5": Tiny(
        lambda: hf.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4),
        "T5Model",
        "pair",
    ),
    "bart": Tiny(lambda: hf.BartConfig(**BART), "BartModel", "pair"),
    "marian": Tiny(
        lambda: hf.MarianConfig(**BART, decoder_vocab_size=99, decoder_start_token_id=1),
        "MarianModel",
        "pair",
    ),
    "whisper": Tiny(
        lambda: hf.WhisperConfig(
            **{k: v for k, v in BART.items() if k != "max_position_embeddings"},
            num_mel_bins=8,
            max_source_positions=10,
            max_target_positions=20,
            decoder_start_token_id=1,
            bos_token_id=2,
            eos_token_id=3,
        ),
        "WhisperModel",
        "audio",
    ),
    "vit": Tiny(
        lambda: hf.ViTConfig(
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=37,
            num_hidden_layers=2,
            image_size=16,
            patch_size=4,
        ),
        "ViTModel",
        "image",
    ),
}


def inputs(kind: str, batch: int = 2, length: int = 9) -> dict[str, torch.Tensor]:
    """Inputs of one sort; texts are padded, the first on the right."""
    noise = torch.Generator().manual_seed(1)
    if kind == "image":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=noise)}
    ids = torch.randint(4, 99, (batch, length), generator=noise)
    target = torch.randint(4, 99, (batch, length - 3), generator=noise)
    if kind == "audio":
        return {"input_features": torch.randn(batch, 8, 20, generator=noise), "decoder_input_ids": target}
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - 3 :] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return given | {"decoder_input_ids": target} if kind == "pair" else given


def own_attentions(output) -> dict[str, list[torch.Tensor]]:
    """A model's own eager attention by kind; "self" where the model has only one."""
    if hasattr(output, "encoder_attentions"):
        return {
            "encoder": list(output.encoder_attentions),
            "decoder": list(output.decoder_attentions),
            "cross": list(output.cross_attentions),
        }
    return {"self": list(output.attentions)}
