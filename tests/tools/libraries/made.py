"""Small random models of other libraries, each with its inputs: two texts, images or sounds."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
import transformers as hf
from torch import nn

from tests.models.folders import gpt2, save

Given: TypeAlias = "tuple[nn.Module, tuple[Any, ...], dict[str, Any]]"
Make: TypeAlias = Callable[[], Given]


def ids(length: int = 12) -> torch.Tensor:
    """Two texts of token ids."""
    return torch.randint(1, 99, (2, length))


# fmt: off
WITHOUT_ATTENTION = frozenset((
        "resnet", "efficientnet", "densenet", "vgg", "regnet", "convnext", "dla", "hrnet", "inception_v3",
        "inception_v4", "mobilenetv3", "resnetv2", "sknet", "res2net", "resnest", "senet", "xception",
        "xception_aligned", "vovnet", "tresnet", "selecsls", "rexnet", "repvgg", "repghost", "pnasnet",
        "nasnet", "inception_resnet_v2", "inception_next", "hardcorenas", "ghostnet", "focalnet", "cspnet",
        "mlp_mixer", "starnet", "rdnet", "convmixer", "dpn", "fasternet", "hgnet", "lcnet", "mambaout",
        "nfnet", "repvit", "sequencer", "pvig",
))
"""Files of timm that hold convolutions and other layers alone."""

SMALL = ("nano", "atto", "xxs", "xx_small", "tiny", "_s0", "_b0", "mini", "pico", "_t_", "xs", "small")
# fmt: on


LARGEST = 90_000_000  # parameters of a model that is tried


def timm() -> dict[str, Make]:
    """The smallest model of each of timm's files that has attention, on pictures half as large if it can."""
    library = import_module("timm")
    files: dict[str, list[str]] = {}
    for name in library.list_models():
        files.setdefault(library.models._registry._model_to_module[name], []).append(name)

    def make(name: str, part: int = 2) -> Given:
        with torch.device("meta"):
            count = sum(each.numel() for each in library.create_model(name).parameters())
        if count > LARGEST:
            raise LookupError(f"it has {count:,} parameters")
        size = library.get_pretrained_cfg(name).input_size[-1] // part
        options = {"img_size": size} if part > 1 else {}
        try:
            model = library.create_model(name, pretrained=False, num_classes=5, **options).eval()
            picture = torch.randn(2, 3, size, size)
            with torch.inference_mode():
                model(picture)
            return model, (picture,), {}
        except (TypeError, AssertionError, RuntimeError, ValueError, IndexError):
            if part == 1:
                raise
            return make(name, 1)

    smallest = {}
    for file, names in sorted(files.items()):
        if file not in WITHOUT_ATTENTION:
            name = min([name for name in names if any(word in name for word in SMALL)] or names, key=len)
            smallest[name] = partial(make, name)
    return smallest


def torchvision() -> dict[str, Make]:
    """Its transformers of pictures and films."""
    library = import_module("torchvision.models")
    sizes = {"vit_b_32": (224, 224), "swin_t": (112, 112), "swin_v2_t": (128, 128), "maxvit_t": (224, 224)}
    sizes |= {"swin3d_t": (4, 64, 64), "mvit_v2_s": (16, 224, 224)}

    def make(name: str, size: tuple[int, ...]) -> Given:
        return library.get_model(name), (torch.randn(2, 3, *size),), {}

    return {name: partial(make, name, size) for name, size in sizes.items()}


def open_clip() -> dict[str, Make]:
    """CLIP with both its towers, and CoCa."""
    library = import_module("open_clip")

    def make(name: str, **options: Any) -> Given:
        model = library.create_model(name, pretrained=None, load_weights=False, **options)
        size = model.visual.image_size
        size = size if isinstance(size, int) else size[0]
        return model, (torch.randn(2, 3, size, size), ids(77)), {}

    made = {name: partial(make, name) for name in ("ViT-B-32", "coca_ViT-B-32")}
    return made | {"ViT-B-32 custom": partial(make, "ViT-B-32", force_custom_text=True)}


def x_transformers() -> dict[str, Make]:
    """Decoders and encoders with what its documentation offers for attention."""
    library = import_module("x_transformers")
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "flash": {"attn_flash": True},
        "rotary": {"rotary_pos_emb": True},
        "memory": {"attn_num_mem_kv": 4},
        "talking heads before": {"attn_pre_talking_heads": True},
        "talking heads behind": {"attn_post_talking_heads": True},
        "one key head": {"attn_one_kv_head": True},
        "key heads": {"attn_kv_heads": 2},
        "sparse": {"attn_sparse_topk": 3},
        "alibi": {"alibi_pos_bias": True},
        "relative bias": {"rel_pos_bias": True},
        "norm of queries": {"attn_qk_norm": True},
        "sigmoid": {"attn_sigmoid": True},
        "gate": {"attn_gate_values": True},
        "macaron": {"macaron": True},
        "sandwich": {"sandwich_coef": 1},
        "residual": {"residual_attn": True},
        "shifted": {"shift_tokens": 1},
        "softclamp": {"attn_softclamp_logits": True},
        "selective": {"attn_selective": True},
    }

    def make(kind: str, **settings: Any) -> Given:
        layers = getattr(library, kind)(dim=32, depth=2, heads=4, attn_dim_head=8, **settings)
        model = library.TransformerWrapper(num_tokens=99, max_seq_len=32, attn_layers=layers)
        return model, (ids(),), {}

    def translator() -> Given:
        side = {"num_tokens": 99, "depth": 2, "heads": 4, "max_seq_len": 32}
        names = {f"{end}_{name}": value for end in ("enc", "dec") for name, value in side.items()}
        model = library.XTransformer(dim=32, tie_token_emb=False, **names)
        return model, (ids(), ids(9)), {}

    made = {name: partial(make, "Decoder", **settings) for name, settings in options.items()}
    return made | {"encoder": partial(make, "Encoder"), "encoder and decoder": translator}


def vit_pytorch() -> dict[str, Make]:
    """The models of its README that read pictures of 32 or 64 pixels."""
    base: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2}
    base |= {"heads": 4, "mlp_dim": 32}
    twins = {"emb_dim": 24, "local_patch_size": 4, "global_k": 4, "depth": 1}

    def stages(numbers: tuple[int, ...], **values: int) -> dict[str, int]:
        return {f"s{number}_{name}": value for number in numbers for name, value in values.items()}

    def cross(end: str) -> dict[str, int]:
        sizes = {"dim": 32, "enc_heads": 4, "enc_depth": 1, "enc_mlp_dim": 32}
        return {f"{end}_{name}": value for name, value in sizes.items()}

    four = {"dim": (24, 24, 24, 24), "depth": (1, 1, 1, 1), "num_classes": 5}
    names = {
        "vit": ("ViT", base), "simple_vit": ("SimpleViT", base), "deepvit": ("DeepViT", base),
        "cait": ("CaiT", base | {"cls_depth": 1}), "vit_for_small_dataset": ("ViT", base),
        "t2t": ("T2TViT", base | {"t2t_layers": ((7, 4), (3, 2)), "patch_size": None}),
        "parallel_vit": ("ViT", base | {"num_parallel_branches": 2}), "learnable_memory_vit": ("ViT", base),
        "simple_vit_with_register_tokens": ("SimpleViT", base), "rvt": ("RvT", base),
        "simple_vit_with_qk_norm": ("SimpleViT", base), "simple_flash_attn_vit": ("SimpleViT", base),
        "xcit": ("XCiT", base | {"cls_depth": 1, "local_patch_kernel_size": 3}),
        "pit": ("PiT", base | {"depth": (1, 1)}), "vit_with_patch_dropout": ("ViT", base),
        "nest": ("NesT", {"image_size": 32, "patch_size": 4, "dim": 32, "heads": 4, "num_classes": 5,
                          "num_hierarchies": 2, "block_repeats": (1, 1)}),
        "max_vit": ("MaxViT", {"num_classes": 5, "dim_conv_stem": 24, "dim": 24, "dim_head": 8,
                               "depth": (1, 1), "window_size": 4}),
        "regionvit": ("RegionViT", four | {"window_size": 2}),
        "scalable_vit": ("ScalableViT", {"num_classes": 5, "dim": 24, "heads": (2, 2, 2, 2),
                         "depth": (1, 1, 1, 1), "ssa_dim_key": (8, 8, 8, 8), "reduction_factor": (4, 2, 1, 1),
                         "window_size": (4, 4, None, None)}),
        "cvt": ("CvT", {"num_classes": 5, **stages((1, 2, 3), emb_dim=24, heads=2, depth=1)}),
        "twins_svt": ("TwinsSVT", {"num_classes": 5, **stages((1, 2), patch_size=2, **twins),
                                   **stages((3, 4), patch_size=1, **twins)}),
        "cross_vit": ("CrossViT", {"image_size": 32, "num_classes": 5, "depth": 1, "sm_patch_size": 8,
                                   "lg_patch_size": 16, **cross("sm"), **cross("lg")}),
        "levit": ("LeViT", {"image_size": 64, "num_classes": 5, "stages": 2, "dim": (16, 16), "depth": 1,
                            "heads": (2, 2), "mlp_mult": 2}),
    }  # fmt: skip

    def make(module: str, name: str, settings: dict[str, Any]) -> Given:
        settled = {key: value for key, value in settings.items() if value is not None}
        model = getattr(import_module(f"vit_pytorch.{module}"), name)(**settled)
        size = 32 if "image_size" in settings and module != "levit" else 64
        return model, (torch.randn(2, 3, size, size),), {}

    import_module("vit_pytorch")
    return {module: partial(make, module, *settings) for module, settings in names.items()}


HEADS = {"attention_head_dim": 8, "num_attention_heads": 4}
TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
STATES = {"sample_size": 8, "in_channels": 4, "patch_size": 2, "num_layers": 2, **HEADS}


def diffusers() -> dict[str, Make]:
    """A U-Net with each way to attend that it offers, and the transformers."""
    library = import_module("diffusers")
    processors = import_module("diffusers.models.attention_processor")
    steps, latents = torch.tensor([3, 3]), (2, 4, 8, 8)

    def unet(change: Any = lambda model: None) -> Given:
        blocks = {"layers_per_block": 1, "block_out_channels": (32, 32), "norm_num_groups": 8}
        blocks["down_block_types"] = ("DownBlock2D", "CrossAttnDownBlock2D")
        blocks["up_block_types"] = ("CrossAttnUpBlock2D", "UpBlock2D")
        model = library.UNet2DConditionModel(
            sample_size=8, cross_attention_dim=16, attention_head_dim=8, **blocks
        )
        change(model)
        return model, (torch.randn(latents), torch.tensor(3), torch.randn(2, 5, 16)), {}

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
        sizes = {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1}
        sizes |= {"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32}
        sizes |= {"pooled_projection_dim": 32, "guidance_embeds": True}
        model = library.FluxTransformer2DModel(**sizes, axes_dims_rope=[4, 4, 8])
        given = {"encoder_hidden_states": torch.randn(2, 6, 32), "pooled_projections": torch.randn(2, 32)}
        places = {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3)}
        times = {"timestep": torch.ones(2), "guidance": torch.ones(2)}
        return model, (), {"hidden_states": torch.randn(2, 16, 4), **given, **places, **times}

    return {
        "UNet": unet,
        "UNet, sliced": lambda: unet(lambda model: model.set_attention_slice(1)),
        "UNet, plain": lambda: unet(lambda model: model.set_attn_processor(processors.AttnProcessor())),
        "DiT": dit,
        "PixArt": pixart,
        "SD3": sd3,
        "Flux": flux,
    }


def sentence_transformers() -> dict[str, Make]:
    """A pooled encoder."""
    library = import_module("sentence_transformers")

    def built() -> Given:
        with TemporaryDirectory() as folder:
            gpt2(Path(folder))  # with a tokenizer
            save(Path(folder), hf.BertModel(hf.BertConfig(**TEXT, intermediate_size=32)))
            model = library.SentenceTransformer(folder)
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[0, 8:] = 0
        return model, ({"input_ids": ids(), "attention_mask": mask},), {}

    return {"BERT": built}


def speechbrain() -> dict[str, Make]:
    transformer = import_module("speechbrain.lobes.models.transformer.Transformer")
    conformer = import_module("speechbrain.lobes.models.transformer.Conformer")
    attention = import_module("speechbrain.nnet.attention")

    def make(kind: str, build: Any) -> Given:
        model, states = build(attention_type=kind), torch.randn(2, 12, 32)
        placed = kind == "RelPosMHAXL"
        return model, (states,), {"pos_embs": attention.RelPosEncXL(32)(states)} if placed else {}

    encoder = partial(transformer.TransformerEncoder, 2, 4, 64, d_model=32)
    conform = partial(conformer.ConformerEncoder, 2, 32, 64, 4, kernel_size=3)
    kinds = {"encoder": "regularMHA", "relative positions": "RelPosMHAXL", "hypermixing": "hypermixing"}
    made = {name: partial(make, kind, encoder) for name, kind in kinds.items()}
    return made | {"Conformer": partial(make, "RelPosMHAXL", conform)}


def litgpt() -> dict[str, Make]:
    """Its GPT with key heads of its own number, and with a window."""
    model = import_module("litgpt.model")
    sizes = {"block_size": 16, "n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 99}
    sizes["padded_vocab_size"] = 99

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
    return hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, intermediate_size=64, num_key_value_heads=2))


def peft() -> dict[str, Make]:
    """Adapters around a Llama: low rank, learned scales, and a prefix, that is keys of no token."""
    library = import_module("peft")

    def make(name: str, **settings: Any) -> Make:
        config = partial(getattr(library, f"{name}Config"), task_type="CAUSAL_LM", **settings)
        return lambda: (library.get_peft_model(_llama(), config()), (), {"input_ids": ids()})

    return {
        "LoRA": make("Lora", target_modules=["q_proj", "v_proj"]),
        "IA3": make("IA3"),
        "prefix": make("PrefixTuning", num_virtual_tokens=3),
        "prompt": make("PromptTuning", num_virtual_tokens=3),
        "Llama adapter": make("AdaptionPrompt", adapter_len=3, adapter_layers=2),
    }


def pytorch_forecasting() -> dict[str, Make]:
    """The attention of its Temporal Fusion Transformer: the last 4 of 12 steps attend to all of them."""
    modules = import_module("pytorch_forecasting.models.temporal_fusion_transformer.sub_modules")

    def built() -> Given:
        states = torch.randn(2, 12, 32)
        future = torch.ones(4, 12, dtype=torch.bool).triu(9).expand(2, 4, 12)
        return (
            modules.InterpretableMultiHeadAttention(n_head=4, d_model=32, dropout=0.0),
            (),
            {"q": states[:, 8:], "k": states, "v": states, "mask": future},
        )

    return {"Temporal Fusion Transformer": built}


def torchao() -> dict[str, Make]:
    """A Llama whose weights are of 8 bits."""
    library = import_module("torchao.quantization")

    def built() -> Given:
        library.quantize_(model := _llama().eval(), library.Int8WeightOnlyConfig())
        return model, (), {"input_ids": ids()}

    return {"8 bits": built}


LIBRARIES = (timm, torchvision, open_clip, diffusers, x_transformers, vit_pytorch, sentence_transformers)
LIBRARIES += (speechbrain, litgpt, peft, pytorch_forecasting, torchao)


def all_models() -> dict[str, Make]:
    """Every model by its library and name; libraries that are not installed have none."""
    made: dict[str, Make] = {}
    for library in LIBRARIES:
        try:
            made |= {f"{library.__name__.replace('_', '-')} {name}": make for name, make in library().items()}
        except (ImportError, OSError) as error:
            print(f"{library.__name__} is left out: {error}")
    return made
