"""Types that one factor cannot build, and the inputs of unusual forward arguments."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import torch

from tests.tools.coverage.live import liven
from tests.tools.coverage.shrink import (
    LENGTH,
    RESNET,
    build,
    feedings,
    image,
    model_class,
    noise,
    numbers,
    small_config,
    texts,
)
from tests.tools.survey import describe_error

Feed: TypeAlias = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """Changed settings (dotted keys), inputs, layers, factors to try in turn, and the class.

    ``eager`` is the attention of the model that is compared with, of all its parts or by part.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    inputs: Feed | None = None
    layers: int = 2
    factors: tuple[int, ...] = (16, 8, 4)
    model: str | None = None
    eager: str | dict[str, str] = "eager"
    gain: float = 3.0  # what random matrices are multiplied with, so that rows are not all but even


def given(*parts: Feed, **named: Any) -> Feed:
    """What each part gives, and more by name: a tuple is noise of that shape, a word in it a setting."""

    def feed(model: Any) -> dict[str, Any]:
        def random(shape: tuple[Any, ...]) -> torch.Tensor:
            return noise(
                *(attrgetter(size)(model.config) if isinstance(size, str) else size for size in shape)
            )

        made = {name: random(one) if isinstance(one, tuple) else one for name, one in named.items()}
        return {name: one for part in parts for name, one in part(model).items()} | made

    return feed


def fed(*parts: Feed | dict[str, Any], **named: Any) -> Recipe:
    """A type with these changes to its settings, if any stand in front, and with these inputs."""
    changes = [part for part in parts if isinstance(part, dict)]
    return Recipe(*changes or [{}], given(*parts[len(changes) :], **named))


def words(*more: str, batch: int = 2) -> Feed:
    """Token ids, and what else goes with them."""
    return lambda model: texts(model, ["input_ids", *more], batch)


def inside(part: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Changes to a part of the config."""
    return {f"{part}.{key}": value for key, value in changes.items()}


def both(model: Any) -> dict[str, Any]:
    return words()(model) | image(model, [], 2)


def series(model: Any) -> dict[str, Any]:
    """A past and a future of numbers, with their times and lags."""
    past = model.config.context_length + max(model.config.lags_sequence)
    return given(
        past_values=(2, past),
        past_time_features=(2, past, "num_time_features"),
        past_observed_mask=torch.ones(2, past),
        future_values=(2, "prediction_length"),
        future_time_features=(2, "prediction_length", "num_time_features"),
    )(model)


def acting(model: Any) -> dict[str, Any]:
    places = torch.full((2, 4), model.config.vlm_config.image_token_id)
    return given(
        action_embeds=(2, 5, "dit_config.hidden_size"),
        input_ids=torch.cat([places, numbers(100, 2, 6)], 1),
        pixel_values=(2, 1, 3, 28, 28),
        pixel_attention_mask=torch.ones(2, 1, dtype=torch.bool),
        attention_mask=ones(2, 10),
    )(model)


ones = partial(torch.ones, dtype=torch.long)
grid = torch.cartesian_prod
# two sounds one after the other, [feature, frame], with their lengths
PACKED = given(input_features=("num_mel_bins", 80), feature_lens=torch.tensor([48, 32]))
# an image with an example and its answer
PROMPTED = given(**dict.fromkeys(("pixel_values", "prompt_pixel_values", "prompt_masks"), (2, 3, 32, 32)))
MARKED = given(  # a text with a place for each query of an image's former, and the image
    input_ids=torch.cat([torch.full((2, 4), 3), numbers(100, 2, 6)], 1),
    pixel_values=(2, 3, 56, 56),
    attention_mask=ones(2, 10),
)
IDS = numbers(100, 2, LENGTH)
DECODED = given(decoder_input_ids=numbers(100, 2, 6))
FIRST = torch.arange(LENGTH).eq(0).long().expand(2, LENGTH)  # of each text, sees all and is seen by all
GLOBALLY = given(input_ids=IDS, attention_mask=ones(2, LENGTH), global_attention_mask=FIRST)
POINTS = given(input_points=torch.full((2, 1, 1, 2), 60.0), input_labels=ones(2, 1, 1))
FRAME = torch.tensor([[1, 4, 8]])  # of an image as a list of patches
ROWS = given(pixel_values=(1, 3, 16, 16 * 32), target_sizes=torch.tensor([[4, 8]]))
SHAPED = given(  # sixteen patches of an image with the shape of their grid
    pixel_values=(2, 16, 768), pixel_attention_mask=ones(2, 16), spatial_shapes=torch.tensor([[4, 4], [2, 8]])
)
PLACES = grid(torch.arange(1.0, 5), torch.arange(1.0, 5)).expand(2, 16, 2)
FLAT = given(  # sixteen patches of an image, each with its row and column in front
    flattened_patches=torch.cat([PLACES, noise(2, 16, 768)], -1), attention_mask=torch.ones(2, 16)
)

ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
SECTION = {"rope_parameters.mrope_section": [1, 1, 2]}
INDEXED = {"layer_types": ["linear_attention", "indexed_attention"], "indexer_n_heads": 2}
INDEXED |= {"indexer_kv_heads": 1, "indexer_budget": 8, "indexer_head_dim": 16, "indexer_compress_ratio": 4}
OCR = {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2, "n_routed_experts": 4}
OCR |= {"moe_intermediate_size": 32}
EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
DRY = {"dropout_rate": 0.0}
HYBRID = {"layers_block_type": ["linear_attention", "hybrid"] * 2}
SERIES = {"prediction_length": 4, "context_length": 8, "num_time_features": 2, "feature_size": 11}
FORECAST = {"context_length": 64, "hidden_size": 64, "intermediate_size": 64, "head_dim": 8}
IMAGE = {"image_size": 56}
SQUARE = {"image_size": [56, 56]}
LARGER = {"image_size": 64}
THIN = {"width_coefficient": 0.5, "depth_coefficient": 0.1, "image_size": 64, "hidden_dim": 640}
FILM = {"image_size": 32, "num_frames": 4}
RESIZED_FILM = {"image_size": 36, "num_frames": 4}
ROTATED = {"num_heads": 9}  # whose size is even, for rotary embeddings in two dimensions
FROM_RESNET = {"num_queries": 10, "backbone_config": RESNET, "encoder_in_channels": [8, 16, 16]}
FROM_RESNET |= {"decoder_in_channels": [16, 16, 16]}
DENSE = {"backbone_config.out_indices": [1, 2, 3, 4], "backbone_config.out_features": None}
FOUR_STAGES = {"backbone_config": RESNET | {"out_features": ["stage1", "stage2", "stage3", "stage4"]}}
HIERA = {"backbone_channel_list": [768, 384, 192, 96], "backbone_config.image_size": [128, 128]}
HIERA |= {"backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]}
FRAMES = {"max_source_positions": 20}
DINO = Recipe({"num_queries": 20}, eager={"text_config": "sdpa", "": "eager"})  # its text as it is
SAM3 = {"backbone_config.image_size": 112, "backbone_config.pretrain_image_size": 112}
SAM3 |= {"backbone_config.hidden_size": 64, "backbone_config.intermediate_size": 128}
SAM3 |= {"backbone_config.num_hidden_layers": 2, "backbone_config.num_attention_heads": 4}
SAM3 |= {"backbone_config.global_attn_indexes": [1], "backbone_config.window_size": 4}
SAM3 |= {"backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]}
SMALL_IMAGE = inside("vision_config", IMAGE)
QUERIES = SMALL_IMAGE | {"num_query_tokens": 4, "image_token_index": 3}
QUERIES |= {"vision_config.num_attention_heads": 8}

TABLE: dict[str, Recipe] = {
    # texts and series
    "gemma4 gemma4_text": Recipe(gain=1.0),  # scores in the tens would make roundings of other layers visible
    "esm": Recipe({"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 2}),
    "bamba": Recipe({"attn_layer_indices": [1]}),
    "granitemoehybrid": Recipe({"layer_types": ["mamba", "attention"]}),
    "recurrent_gemma": Recipe(layers=3),
    "lfm2_moe": Recipe({"layer_types": ["conv", "full_attention"]}),
    "xmod": Recipe({"default_language": "en_XX"}),
    "nemotron": Recipe({"num_key_value_heads": 8}),
    "deepseek_v2": Recipe({"num_experts_per_tok": 2, "moe_intermediate_size": 64}),
    "dots1": Recipe({"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}),
    "blt": fed({"encoder_hash_byte_group_vocab": 200}, words(), use_cache=False),
    "cohere_compass_text": Recipe({"rope_parameters": {"full_attention": ROPE}}),
    "csm": Recipe({}, given(input_ids=numbers(100, 2, LENGTH, 32)), model="CsmBackboneModel"),
    "dbrx": Recipe({"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0}),
    "dia_decoder": fed(
        input_ids=numbers(100, 2, LENGTH, 9), encoder_hidden_states=(2, 15, "cross_hidden_size")
    ),
    "ernie4_5_vl_moe_text": Recipe(SECTION),
    "gemma3n_text": Recipe({"num_kv_shared_layers": 0}),
    "bros": Recipe({"dim_bbox": 8}, factors=(4,)),
    "clvp_encoder": Recipe({"num_attention_heads": 1}),
    "deepseek_ocr2_text": Recipe(OCR),
    "diffusion_gemma_text": Recipe(EXPERTS),
    "longformer": Recipe({"attention_window": [4, 8]}, GLOBALLY),
    "led": fed({"attention_window": [4, 8]}, GLOBALLY, DECODED),
    "pegasus_x": Recipe({"block_size": 4, "num_global_tokens": 3}),
    "hrm_text": Recipe({"num_layers_per_stack": 1, "num_hidden_layers": 16}),
    "kyutai_speech_to_text": fed(input_ids=numbers(100, 2, LENGTH, 33)),
    "moshi_depth": fed(input_ids=numbers(100, 2, 8), last_hidden_state=(2, 1, "input_size")),
    "qwen3_omni_moe_talker_text": Recipe({"shared_expert_intermediate_size": 32}),
    "qwen3_omni_moe_talker_code_predictor": fed(inputs_embeds=(2, LENGTH, "hidden_size")),
    "qwen4_exp_text": Recipe(INDEXED),
    "step3p5": Recipe({"sliding_window": 6}),
    "t5gemma2_decoder t5gemma2_text": Recipe(DRY),
    "t5gemma2_encoder": Recipe(inside("text_config", DRY)),
    "voxtral_realtime_text": fed(words(), t_cond=(1, "hidden_size")),
    "zamba": Recipe(HYBRID, layers=4),
    "zamba2": Recipe(HYBRID | {"hybrid_layer_ids": [1, 3]}, layers=4),
    "musicgen_decoder musicgen_melody_decoder": fed(input_ids=numbers(100, 8, LENGTH)),  # books of two texts
    "rag": fed(
        DECODED,
        input_ids=IDS,
        context_input_ids=numbers(100, 4, LENGTH),  # two documents for each text
        context_attention_mask=ones(4, LENGTH),
        doc_scores=(2, 2),
        n_docs=2,
    ),
    "pix2struct_text_model": Recipe({"initializer_range": 0.02}),
    "autoformer": Recipe(SERIES | {"context_length": 14}, series),
    "informer time_series_transformer": Recipe(SERIES, series),
    "decision_transformer": fed(
        {"hidden_size": 32, "n_head": 2},
        states=(2, 5, "state_dim"),
        actions=(2, 5, "act_dim"),
        rewards=(2, 5, 1),
        returns_to_go=(2, 5, 1),
        timesteps=torch.arange(5).expand(2, 5),
        attention_mask=torch.ones(2, 5),
    ),
    "patchtst patchtsmixer": fed(past_values=(2, "context_length", 1)),
    "timesfm": fed(FORECAST, past_values=(2, 64), past_values_padding=0 * ones(2, 64), freq=0 * ones(2, 1)),
    "timesfm2_5": fed(FORECAST | {"num_attention_heads": 8, "num_key_value_heads": 8}, past_values=(2, 64)),
    # images
    "swin": Recipe({"image_size": 112}),  # several windows in both stages
    "internvl_vision qianfan_ocr_vision": Recipe(SQUARE),
    "granite_docling_vision": Recipe(LARGER),
    "phi4_multimodal_vision": Recipe(IMAGE | {"crop_size": 56}, gain=1.0),
    "tipsv2_vision_model": Recipe(IMAGE),
    "vivit videomae": Recipe(FILM),
    "vjepa2": fed({"crop_size": 32, "frames_per_clip": 4}, pixel_values_videos=(2, 4, 3, 32, 32)),
    "videoprism_vision_model": fed(RESIZED_FILM, pixel_values_videos=(2, 4, 3, 36, 36)),
    "xclip_vision_model": fed(LARGER, pixel_values=(16, 3, 64, 64)),
    "llama4_vision_model": Recipe(IMAGE | {"num_attention_heads": 4, "intermediate_size": 192}),
    "align_vision_model efficientnet": Recipe(THIN, factors=(1,)),
    "bit": Recipe(factors=(1,)),
    "cvt": Recipe({"depth": [1, 2, 3]}),
    "levit": Recipe(gain=12.0),  # else its convolutions leave nothing of a picture, and rows are all even
    "mlcd mlcd_vision_model": Recipe(IMAGE | {"num_attention_heads": 13}),
    "mllama_vision_model": fed(
        IMAGE | {"intermediate_layers_indices": [0, 1]},  # one image in two tiles of four, for each text
        pixel_values=(2, 1, 4, 3, 56, 56),
        aspect_ratio_ids=torch.tensor([[2], [2]]),
        aspect_ratio_mask=torch.tensor([[[1, 1, 0, 0]]] * 2),
    ),
    "florence_vision": fed(hidden_states=(2, 3, 64, 64)),
    "bridgetower_vision_model": fed(LARGER | {"hidden_size": 128}, image=(2, 3, 64, 64)),
    "chmv2 zoedepth": Recipe(DENSE | inside("backbone_config", LARGER), layers=4),
    "depth_anything prompt_depth_anything": Recipe(DENSE | inside("backbone_config", IMAGE), layers=4),
    "rt_detr rt_detr_v2 d_fine deimv2 pp_doclayout_v2 pp_doclayout_v4": Recipe(FROM_RESNET),
    "maskformer": Recipe(FOUR_STAGES, gain=1.0),
    "mask2former": Recipe(FOUR_STAGES),
    "sam sam_hq": Recipe(
        {"prompt_encoder_config.image_embedding_size": 16, "vision_config.num_pos_feats": 8}
    ),
    "sam2_vision_model": fed(HIERA, pixel_values=(2, 3, 128, 128)),
    "sam2": fed(
        inside("vision_config", HIERA) | {"prompt_encoder_config.image_size": 128},
        POINTS,
        pixel_values=(2, 3, 128, 128),
    ),
    "seggpt": Recipe({"image_size": [64, 32]}, PROMPTED),
    "siglip2_vision_model": fed(SHAPED),
    "gemma4_vision": fed(
        pixel_values=(2, 36, 768), pixel_position_ids=grid(torch.arange(6), torch.arange(6)).expand(2, 36, 2)
    ),
    "pix2struct_vision_model kosmos_2_5_vision_model": fed(FLAT),
    "idefics2_perceiver": fed(context=(2, 20, "hidden_size"), attention_mask=ones(2, 20)),
    "qwen3_vl_vision qwen3_vl_moe_vision qwen3_5_vision qwen3_5_moe_vision": Recipe(ROTATED),
    "qwen3_omni_moe_vision_encoder qwen4_exp_vision cohere_compass_vision": Recipe(ROTATED),
    "superglue lightglue": fed(pixel_values=(2, 2, 3, 64, 64)),
    "paddleocr_vl_vision": fed(
        IMAGE | {"num_attention_heads": 9}, pixel_values=(1, 32, 3, 14, 14), grid_thw=FRAME
    ),
    "molmo2_vision": fed(SQUARE | {"num_position_embeddings": 16}, pixel_values=(2, 16, 588)),
    "minicpm_ocr_vision minicpmv4_6_vision minicpmv4_7_vision": fed(ROWS),
    "vitmatte": Recipe({"hidden_size": 48, "backbone_config.image_size": 64}),
    "videomt": fed(LARGER, pixel_values_videos=(1, 2, 3, 64, 64)),
    "deepseek_ocr2_vision": Recipe({"sam_config.downsample_channels": [32, 256]}),
    "unlimited_ocr_vision": Recipe({"sam_config.downsample_channels": [32, 64]}),
    "video_llama_3_vision": fed(pixel_values=(32, 768), grid_thw=FRAME, merge_sizes=torch.tensor([2])),
    # sounds
    "data2vec-audio": Recipe({"num_conv_pos_embedding_groups": 4}),
    "audio-spectrogram-transformer": Recipe({"max_length": 64}),
    "whisper voxtral_encoder qwen2_audio_encoder moss_transcribe_diarize_audio": Recipe(FRAMES),
    "audioflamingo3_encoder": fed(FRAMES, input_features=(2, 128, 40), input_features_mask=ones(2, 40)),
    "qwen2_5_omni_audio_encoder": Recipe({"n_window": 10}, PACKED),
    "qwen3_omni_moe_audio_encoder": fed(PACKED),
    "qwen3_asr_encoder": fed(input_features=(2, 128, 100), input_features_mask=ones(2, 100)),
    "fun_asr_nano_encoder": fed(input_features=(2, 20, 560), input_features_mask=ones(2, 20)),
    "granite_speech_encoder granite_speech_plus_encoder": fed(hidden_states=(2, 20, "input_dim")),
    "speech_to_text": fed(
        DECODED, input_features=(2, 40, "input_feat_per_channel"), attention_mask=ones(2, 40)
    ),
    "speecht5": fed(input_values=(2, LENGTH, "hidden_size"), decoder_input_values=(2, 6, "hidden_size")),
    "wav2vec2-bert": fed(input_features=(2, 20, 10)),
    "clap": fed(input_ids=IDS, input_features=(2, 1, 1001, 64), is_longer=torch.tensor([[True], [False]])),
    "phi4_multimodal_audio": fed(hidden_states=(2, 64, 80), mask=torch.ones(2, 64, dtype=torch.bool)),
    "gemma3n_audio": fed(audio_mel=(2, 64, 128), audio_mel_mask=torch.zeros(2, 64, dtype=torch.bool)),
    "gemma4_audio": fed({"subsampling_conv_channels": [128, 32]}, input_features=(2, 64, 128)),
    "vits": Recipe(gain=1.0),
    "moonshine_streaming": Recipe({"num_key_value_heads": 8}),
    "mimi mimi_decoder pocket_tts_audio_tokenizer": Recipe({"upsample_groups": 32}),
    # a text beside something else, or images together with places
    "lxmert": fed(words("attention_mask"), visual_feats=(2, 5, "visual_feat_dim"), visual_pos=(2, 5, 4)),
    "bridgetower": Recipe({}, both, factors=(4,)),
    "vilt": fed(both),
    "aya_vision": Recipe({"vision_config.num_attention_heads": 16}),
    "align": Recipe(
        inside("vision_config", THIN)
        | {"text_config.hidden_size": 48, "text_config.intermediate_size": 96, "projection_dim": 160},
        both,
        factors=(1,),
    ),
    "diffusion_gemma": Recipe(inside("text_config", EXPERTS)),
    "grounding-dino mm-grounding-dino": DINO,
    "sam3 sam3_lite_text": fed(
        inside("vision_config", SAM3), words("attention_mask"), pixel_values=(2, 3, 112, 112)
    ),
    "sam3_vision_model": fed(SAM3, pixel_values=(2, 3, 112, 112)),
    "sam3_lite_text_text_model": Recipe(layers=4),
    "sam3_tracker": fed(
        inside("vision_config", SAM3)
        | {"prompt_encoder_config.image_size": 112, "prompt_encoder_config.patch_size": 14},
        POINTS,
        pixel_values=(2, 3, 112, 112),
    ),
    "tipsv2": Recipe(SMALL_IMAGE, both),
    "vision-text-dual-encoder": Recipe({"vision_config.pooler_output_size": 48}, both),
    "videoprism": fed(inside("vision_config", RESIZED_FILM), words(), pixel_values_videos=(2, 4, 3, 36, 36)),
    "xclip": fed(inside("vision_config", LARGER), words(), pixel_values=(2, 8, 3, 64, 64)),
    "siglip2": fed(words(), SHAPED),
    "blip-2": Recipe(QUERIES, MARKED),
    "instructblip": fed(QUERIES, MARKED, qformer_input_ids=numbers(100, 2, 5)),
    "instructblipvideo": fed(
        QUERIES | {"video_token_index": 3},
        input_ids=torch.cat([torch.full((2, 8), 3), numbers(100, 2, 6)], 1),
        pixel_values=(2, 2, 3, 56, 56),
        qformer_input_ids=numbers(100, 2, 5),
    ),
    "kosmos-2": fed(
        SMALL_IMAGE | {"text_config.layers": 2, "latent_query_num": 4},
        input_ids=IDS,
        pixel_values=(2, 3, 56, 56),
        image_embeds_position_mask=torch.arange(LENGTH).expand(2, LENGTH).lt(4),
    ),
    "idefics": fed(
        SMALL_IMAGE,
        words("attention_mask"),
        pixel_values=(2, 1, 3, 56, 56),
        image_attention_mask=ones(2, LENGTH, 1),
    ),
    "layoutlmv3": fed(
        {"coordinate_size": 8, "shape_size": 8, "input_size": 32}, words("bbox"), pixel_values=(2, 3, 32, 32)
    ),
    "udop": fed(
        DECODED, input_ids=IDS, bbox=torch.rand(2, LENGTH, 4, generator=torch.Generator().manual_seed(1))
    ),
    "pix2struct": fed({"text_config.initializer_range": 0.02}, FLAT, DECODED),
    "oneformer": fed(
        FOUR_STAGES | {"conv_dim": 32}, pixel_values=(2, 3, 64, 64), task_inputs=numbers(100, 2, 77)
    ),
    "pi0": Recipe(inside("vlm_config.vision_config", {"num_attention_heads": 9, "image_size": 28}), acting),
    "pe_audio": fed(input_ids=IDS, input_values=(2, 1, 1920 * 4)),
    "voxtral_realtime": fed(input_ids=IDS, input_features=(2, 128, 96)),
    "step3p7": Recipe({"text_config.sliding_window": 6}),
    "cohere_compass": Recipe(
        {"vision_config.num_heads": 9, "text_config.rope_parameters": {"full_attention": ROPE}}
    ),
    "qwen4_exp": Recipe(inside("text_config", INDEXED)),
    "ernie4_5_vl_moe": Recipe(inside("text_config", SECTION)),
    "granite4_vision": Recipe(SMALL_IMAGE | {"image_grid_pinpoints": [[56, 56]]}),
    "emu3": Recipe({"vq_config.base_channels": 32, "vocabulary_map": {"<image>": 3, "<|extra_200|>": 4}}),
    "chameleon": Recipe({"vocabulary_map": {"<image>": 3, "IMGIMGAA": 4}}),
    "musicgen": Recipe(model="MusicgenForConditionalGeneration"),
    "musicgen_melody": Recipe(model="MusicgenMelodyForConditionalGeneration"),
    "shieldgemma2": Recipe({"yes_token_index": 5, "no_token_index": 6}),
    "tvp": fed(
        {
            "backbone_config.depths": [1, 1, 1, 1],
            "max_img_size": 64,
            "visual_prompt_size": 8,
            "num_frames": 2,
        },
        words("attention_mask", batch=1),
        pixel_values=(1, 2, 3, 64, 64),
    ),
}
RECIPES = {name: recipe for names, recipe in TABLE.items() for name in names.split()}


def make(model_type: str, failures: list[str]) -> tuple[Any, Any, dict[str, Any] | None]:
    """A tiny model of a type, its config, and inputs that it runs on; what stood in the way is added.

    No inputs where it runs on none; no model where none could be built.
    """
    model, config, recipe = None, None, RECIPES.get(model_type, Recipe())
    for factor in recipe.factors:
        try:
            config = small_config(model_type, factor, recipe.layers, recipe.changes)
            model = build(model_class(model_type, config, recipe.model), config, recipe.gain)
            several = [recipe.inputs(model)] if recipe.inputs else feedings(model)
            if given := accepted(model, several, failures):
                liven(model, given)
                return model, config, given
        except Exception as error:
            failures.append(describe_error(error))
    return model, config, None


def accepted(model: Any, several: list[dict[str, Any]], failures: list[str]) -> dict[str, Any] | None:
    """The first of several inputs that the model runs on."""
    for given in several:
        try:
            with torch.inference_mode():
                model(**given)
            return given
        except Exception as error:
            failures.append(describe_error(error))
    return None
