"""The folders of tiny vision-language models of every family that is made here."""

from pathlib import Path

import torch
import transformers

from tests.models.more_vision_language import MORE
from tests.models.vision_language import FAMILIES

ALL = FAMILIES | MORE

NEED_TORCHVISION = (
    "llava_next_video",
    "llava_onevision",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "smolvlm",
    "internvl",
    "mistral3",
    "glm4v",
    "deepseek_vl",
    "lfm2_vl",
    "llama4",
    "cohere2_vision",
    "video_llama_3",
    "qwen3_5",
    "qwen3_vl_moe",
    "glm46v",
    "glm4v_moe",
    "glm_ocr",
)
"""Those whose processors cannot be made without torchvision."""


def vision_language(folder: Path, name: str) -> str:
    """The folder of a tiny model of that family, with random weights."""
    config, processor = ALL[name]()
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
