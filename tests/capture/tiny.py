"""Tiny random models of many families, with inputs and the attention that they report themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers as hf

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32}
DECODER = {**SIZES, "num_hidden_layers": 3, "num_key_value_heads": 2, "max_position_embeddings": 64}
SIDE = {"layers": 2, "attention_heads": 4, "ffn_dim": 37}
BART = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIDE.items()}
BART |= {"vocab_size": 99, "d_model": 32, "max_position_embeddings": 64, "pad_token_id": 1}


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


def tiny(name: str, sort: str = "text", **options) -> Tiny:
    """The family whose classes begin with this name."""
    return Tiny(lambda: getattr(hf, f"{name}Config")(**options), f"{name}Model", sort)


WHISPER = {
    **{name: size for name, size in BART.items() if name != "max_position_embeddings"},
    **{"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20},
    **{"decoder_start_token_id": 1, "bos_token_id": 2, "eos_token_id": 3},
}
DISENTANGLED = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
PATCHES = {"num_hidden_layers": 2, "image_size": 16, "patch_size": 4}

FAMILIES = {
    "bert": tiny("Bert", **SIZES, num_hidden_layers=3),
    "albert": tiny("Albert", **SIZES, num_hidden_layers=3, embedding_size=16, inner_group_num=1),
    "modernbert": tiny("ModernBert", **SIZES, num_hidden_layers=4, local_attention=6, pad_token_id=0),
    "deberta-v2": tiny("DebertaV2", **SIZES, num_hidden_layers=2, **DISENTANGLED),
    "gpt2": tiny("GPT2", vocab_size=99, n_embd=32, n_layer=3, n_head=4),
    "llama": tiny("Llama", **DECODER),
    "mistral": tiny("Mistral", **DECODER, sliding_window=4),
    "gemma2": tiny("Gemma2", **DECODER, head_dim=8, sliding_window=4, attn_logit_softcapping=0.5),
    "gpt-oss": tiny("GptOss", **DECODER, head_dim=8, sliding_window=4, **EXPERTS),
    "t5": tiny("T5", "pair", vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4),
    "bart": tiny("Bart", "pair", **BART),
    "marian": tiny("Marian", "pair", **BART, decoder_vocab_size=99, decoder_start_token_id=1),
    "whisper": tiny("Whisper", "audio", **WHISPER),
    "vit": tiny("ViT", "image", hidden_size=32, num_attention_heads=4, intermediate_size=37, **PATCHES),
}


def inputs(kind: str, batch: int = 2, length: int = 9) -> dict[str, torch.Tensor]:
    """Inputs of one sort; texts are padded, the first on the right."""
    noise = torch.Generator().manual_seed(1)
    if kind == "image":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=noise)}
    ids = torch.randint(4, 99, (batch, length), generator=noise)
    target = torch.randint(4, 99, (batch, length - 3), generator=noise)
    if kind == "audio":
        sound = torch.randn(batch, 8, 20, generator=noise)
        return {"input_features": sound, "decoder_input_ids": target}
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - 3 :] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return given | {"decoder_input_ids": target} if kind == "pair" else given


def own_attentions(output) -> dict[str, list[torch.Tensor]]:
    """A model's own eager attention by kind; "self" where the model has only one."""
    if hasattr(output, "encoder_attentions"):
        return {kind: list(getattr(output, f"{kind}_attentions")) for kind in ("encoder", "decoder", "cross")}
    return {"self": list(output.attentions)}
