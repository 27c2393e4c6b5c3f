"""Small random models of libraries that make pictures, embed texts, hear, or wrap the models of others."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from tests.tools.libraries.made import Given, Make, ids

HEADS = {"attention_head_dim": 8, "num_attention_heads": 4}
STATES = {"sample_size": 8, "in_channels": 4, "patch_size": 2, "num_layers": 2, **HEADS}


def diffusers() -> dict[str, Make]:
    """A U-Net with each way to attend that it offers, and the transformers."""
    library = import_module("diffusers")
    processors = import_module("diffusers.models.attention_processor")
    steps, latents = torch.tensor([3, 3]), (2, 4, 8, 8)

    def unet(change: Any = lambda model: None) -> Make:
        def built() -> Given:
            model = library.UNet2DConditionModel(
                sample_size=8,
                layers_per_block=1,
                block_out_channels=(32, 32),
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
                cross_attention_dim=16,
                attention_head_dim=8,
                norm_num_groups=8,
            )
            change(model)
            return model, (torch.randn(latents), torch.tensor(3), torch.randn(2, 5, 16)), {}

        return built

    def dit() -> Given:
        model = library.DiTTransformer2DModel(**STATES, num_embeds_ada_norm=10, out_channels=4)
        return model, (torch.randn(latents),), {"timestep": steps, "class_labels": torch.tensor([1, 2])}

    def pixart() -> Given:
        sizes = {"cross_attention_dim": 32, "caption_channels": 16, "out_channels": 8}
        model = library.PixArtTransformer2DModel(**STATES, **sizes, use_additional_conditions=False)
        conditions = {"resolution": None, "aspect_ratio": None}
        given = {"encoder_hidden_states": torch.randn(2, 5, 16), "timestep": steps}
        return model, (torch.randn(latents),), given | {"added_cond_kwargs": conditions}

    def sd3() -> Given:
        sizes = {"joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 64}
        model = library.SD3Transformer2DModel(**STATES, **sizes, out_channels=4)
        given = {"encoder_hidden_states": torch.randn(2, 5, 32), "pooled_projections": torch.randn(2, 64)}
        return model, (), {"hidden_states": torch.randn(latents), "timestep": steps, **given}

    def flux() -> Given:
        model = library.FluxTransformer2DModel(
            patch_size=1,
            in_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            guidance_embeds=True,
            axes_dims_rope=[4, 4, 8],
        )
        given = {"encoder_hidden_states": torch.randn(2, 6, 32), "pooled_projections": torch.randn(2, 32)}
        places = {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3)}
        times = {"timestep": torch.ones(2), "guidance": torch.ones(2)}
        return model, (), {"hidden_states": torch.randn(2, 16, 4), **given, **places, **times}

    return {
        "UNet": unet(),
        "UNet, sliced": unet(lambda model: model.set_attention_slice(1)),
        "UNet, plain": unet(lambda model: model.set_attn_processor(processors.AttnProcessor())),
        "DiT": dit,
        "PixArt": pixart,
        "SD3": sd3,
        "Flux": flux,
    }


def sentence_transformers() -> dict[str, Make]:
    """A pooled encoder, built from parts."""
    import_module("sentence_transformers")

    def built() -> Given:
        import transformers as hf
        from sentence_transformers.models import Pooling
        from torch import nn

        config = hf.BertConfig(
            vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
        )

        class Encoder(nn.Module):
            """What the library's own Transformer module does, without a folder to read from."""

            def __init__(self) -> None:
                super().__init__()
                self.auto_model, self.pooling = hf.BertModel(config), Pooling(32)

            def forward(self, features: dict[str, Any]) -> Any:
                states = self.auto_model(**features)[0]
                return self.pooling(features | {"token_embeddings": states})["sentence_embedding"]

        mask = torch.ones(2, 12, dtype=torch.long)
        mask[0, 8:] = 0
        return Encoder(), ({"input_ids": ids(), "attention_mask": mask},), {}

    return {"BERT": built}


def speechbrain() -> dict[str, Make]:
    """Its encoders."""
    transformer = import_module("speechbrain.lobes.models.transformer.Transformer")
    conformer = import_module("speechbrain.lobes.models.transformer.Conformer")
    attention = import_module("speechbrain.nnet.attention")

    def encoder(kind: str) -> Make:
        def built() -> Given:
            model = transformer.TransformerEncoder(2, 4, 64, d_model=32, attention_type=kind)
            more = {}
            if kind == "RelPosMHAXL":
                more["pos_embs"] = attention.RelPosEncXL(32)(torch.randn(2, 12, 32))
            return model, (torch.randn(2, 12, 32),), more

        return built

    def conform() -> Given:
        model = conformer.ConformerEncoder(2, 32, 64, 4, kernel_size=3, attention_type="RelPosMHAXL")
        states = torch.randn(2, 12, 32)
        return model, (states,), {"pos_embs": attention.RelPosEncXL(32)(states)}

    return {
        "encoder": encoder("regularMHA"),
        "relative positions": encoder("RelPosMHAXL"),
        "hypermixing": encoder("hypermixing"),
        "Conformer": conform,
    }


def litgpt() -> dict[str, Make]:
    """Its GPT with key heads of its own number, and with a window."""
    model = import_module("litgpt.model")
    sizes = {
        "block_size": 16,
        "n_layer": 2,
        "n_head": 4,
        "n_embd": 32,
        "padded_vocab_size": 99,
        "vocab_size": 99,
    }

    def make(**settings: Any) -> Make:
        return lambda: (model.GPT(model.Config(**sizes, **settings)), (ids(),), {})

    capped = {"attention_logit_softcapping": 20.0, "attention_scores_scalar": 8}
    return {
        "GPT": make(),
        "key heads": make(n_query_groups=2),
        "window": make(sliding_window_size=4, sliding_window_layer_placing="interleaved"),
        "soft cap": make(**capped),
    }


def _llama() -> Any:
    import transformers as hf

    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, intermediate_size=64, num_key_value_heads=2))


def peft() -> dict[str, Make]:
    """Adapters around a Llama: low rank, learned scales, and a prefix, that is keys of no token."""
    library = import_module("peft")

    def make(config: Any) -> Make:
        return lambda: (library.get_peft_model(_llama(), config()), (), {"input_ids": ids()})

    words = {"task_type": "CAUSAL_LM"}
    return {
        "LoRA": make(lambda: library.LoraConfig(**words, target_modules=["q_proj", "v_proj"])),
        "IA3": make(lambda: library.IA3Config(**words)),
        "prefix": make(lambda: library.PrefixTuningConfig(**words, num_virtual_tokens=3)),
        "prompt": make(lambda: library.PromptTuningConfig(**words, num_virtual_tokens=3)),
        "Llama adapter": make(lambda: library.AdaptionPromptConfig(**words, adapter_len=3, adapter_layers=2)),
    }


def torchao() -> dict[str, Make]:
    """A Llama whose weights are of 8 bits."""
    library = import_module("torchao.quantization")

    def built() -> Given:
        model = _llama().eval()
        library.quantize_(model, library.Int8WeightOnlyConfig())
        return model, (), {"input_ids": ids()}

    return {"8 bits": built}
