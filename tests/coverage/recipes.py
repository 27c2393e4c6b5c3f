"""Types that need more than one factor for all: what to change, and what to feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.coverage.feed import image, noise, texts


def regions(model: Any) -> dict[str, Any]:
    """Features and places of five regions of an image."""
    return {"visual_feats": noise(2, 5, model.config.visual_feat_dim), "visual_pos": noise(2, 5, 4)}


@dataclass(frozen=True)
class Recipe:
    """How one type is built: factors to try in turn, layers, changed settings, class and inputs."""

    factors: tuple[int, ...] = (16, 8, 4)
    layers: int = 2
    changes: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    gain: float = 3.0  # what random matrices are multiplied with, so that rows are not all but even
    inputs: Callable[[Any], dict[str, Any]] | None = None


# scores in the tens make the roundings of other layers visible: the two that start out there have no gain
RECIPES: dict[str, Recipe] = {
    "gemma4": Recipe(gain=1.0),
    "gemma4_text": Recipe(gain=1.0),
    "esm": Recipe(changes={"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 2}),
    "autoformer": Recipe(changes={"prediction_length": 4, "context_length": 8}),
    "bamba": Recipe(changes={"attn_layer_indices": [1]}),
    "granitemoehybrid": Recipe(changes={"layer_types": ["mamba", "attention"]}),
    "recurrent_gemma": Recipe(layers=3),
    "lfm2_moe": Recipe(changes={"layer_types": ["conv", "full_attention"]}),
    "xmod": Recipe(changes={"default_language": "en_XX"}),
    "deepseek_v2": Recipe(changes={"num_experts_per_tok": 2}),
    "dots1": Recipe(changes={"n_routed_experts": 4, "num_experts_per_tok": 2}),
    "data2vec-audio": Recipe(changes={"num_conv_pos_embedding_groups": 4}),
    "lxmert": Recipe(inputs=lambda model: texts(model, ["input_ids", "attention_mask"], 2) | regions(model)),
    "nemotron": Recipe(changes={"num_key_value_heads": 8}),
    "bridgetower": Recipe(
        factors=(4,), inputs=lambda model: texts(model, ["input_ids"], 2) | image(model, [], 2)
    ),
    "vilt": Recipe(inputs=lambda model: texts(model, ["input_ids"], 2) | image(model, [], 2)),
    "aya_vision": Recipe(changes={"vision_config.num_attention_heads": 16}),
}
