"""Tiny folders of image models with their processors, and image files."""

import importlib.util
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from tests.models import folders

SIZE = {"height": 64, "width": 64}
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
VIT = {**SHAPE, "image_size": 64, "patch_size": 16}
WORDS = {"vocab_size": 30522}
TEXT = SHAPE | WORDS | {"max_position_embeddings": 32, "eos_token_id": 2}
TOWERS: dict[str, Any] = {"text_config": TEXT, "vision_config": VIT}
SEGFORMER = {"depths": [1, 1], "num_encoder_blocks": 2, "hidden_sizes": [16, 32], "sr_ratios": [4, 2]}
SEGFORMER |= {"num_attention_heads": [1, 2], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
PVT = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 2, 2, 4]}
PVT |= {"image_size": 64, "mlp_ratios": [2, 2, 2, 2]}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 2]}
HIERA = {"embed_dim": 16, "image_size": [128, 192], "depths": [1, 2, 2, 1], "num_heads": [1, 2, 2, 4]}
WHOLE = {"size": SIZE}
LAYOUT = SHAPE | WORDS | {"input_size": 64, "patch_size": 16, "coordinate_size": 6, "shape_size": 4}
CROPPED = {"size": {"shortest_edge": 64}, "crop_size": SIZE}

VISION = {  # the names of the config and of the image processor, without their last words, and the settings
    "vit": ("ViT", VIT, "ViT", WHOLE),
    "deit": ("DeiT", VIT, "DeiT", WHOLE | {"crop_size": SIZE}),
    "beit": ("Beit", VIT, "Beit", WHOLE | {"do_center_crop": False}),
    "dinov2": ("Dinov2", VIT, "Bit", CROPPED),
    "dinov2-with-registers": ("Dinov2WithRegisters", VIT, "Bit", CROPPED),
    "dinov3": ("DINOv3ViT", VIT | {"num_register_tokens": 4}, "ViT", WHOLE),
    "clip-vision": ("CLIPVision", VIT, "CLIP", CROPPED),
    "siglip-vision": ("SiglipVision", VIT, "Siglip", WHOLE),
    "yolos": ("Yolos", VIT | {"image_size": [64, 64], "num_detection_tokens": 3}, "ViT", WHOLE),
    "segformer": ("Segformer", SEGFORMER, "ViT", WHOLE),
    "hiera": ("Hiera", HIERA, "ViT", {"size": {"height": 128, "width": 192}}),
    "mae": ("ViTMAE", VIT | {"patch_size": 8}, "ViT", WHOLE),
    "pvt": ("Pvt", PVT, "ViT", WHOLE),
    "pvt_v2": ("PvtV2", PVT, "ViT", WHOLE),
    "swin": ("Swin", SWIN | {"window_size": 4}, "ViT", WHOLE),
    # with a tower for text, and both that see everything at once; a text and an image as one sequence
    "clip": ("CLIP", TOWERS | {"projection_dim": 16}, "CLIP", CROPPED),
    "siglip": ("Siglip", TOWERS, "Siglip", WHOLE),
    "vilt": ("Vilt", VIT | WORDS, "ViT", WHOLE),
    "layoutlmv3": ("LayoutLMv3", LAYOUT, "LayoutLMv3", WHOLE | {"apply_ocr": False}),
}


def vision(folder: Path, name: str) -> str:
    """A tiny model of images; those that read text, too, do so with MiniLM's tokenizer."""
    kind, settings, processor, sizes = VISION[name]
    if settings.keys() & {"text_config", "vocab_size"}:
        transformers.AutoTokenizer.from_pretrained(folders.minilm()).save_pretrained(folder)
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, f"{kind}Model")(config)
    return save_images(folder, model, f"{processor}ImageProcessor", sizes)


def picture(path: Path, rows: int = 48, columns: int = 80) -> Path:
    """An image file: red grows to the right, green downwards, and one corner is blue."""
    down, across = np.mgrid[0:rows, 0:columns]
    pixels = np.stack([across * 255 // columns, down * 255 // rows, np.zeros_like(down)], -1)
    pixels[: rows // 4, : columns // 4] = (0, 0, 255)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def save_noise(file: Path, rows: int, columns: int, seed: int = 0) -> Path:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


def save_images(folder: Path, model, processor: str, sizes) -> str:
    """Write a model of images with random weights, and what prepares them, and say where."""
    return folders.save(folder, model, getattr(transformers, processor)(**sizes))


def put_in_place(windows: torch.Tensor, size: int, shift: int = 0) -> torch.Tensor:
    """Maps of windows of ``size`` patches a side, moved by ``shift``, as one map among all patches.

    [window, head, query, key] -> [head, query, key]
    """
    side = round((len(windows) * size * size) ** 0.5)
    row, column = torch.arange(side * side) // side, torch.arange(side * side) % side
    row, column = (row - shift) % side, (column - shift) % side
    window, inside = row // size * (side // size) + column // size, row % size * size + column % size
    placed = windows[window[:, None], :, inside[:, None], inside].permute(2, 0, 1)
    return placed.masked_fill(window[:, None] != window, 0)


_declared: list[torch.library.Library] = []


@cache
def can_import_torchvision() -> bool:
    """Whether torchvision is there; after this its part in Python can be imported.

    Wheels are compiled for one build of torch. Where the compiled part does not load, its operators are
    declared: importing torchvision only wants that, and processors call nothing that is compiled.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    with suppress(Exception):
        import torchvision  # noqa: F401

        return True
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    _declared.append(library)
    source = (Path(spec.origin).parent / "_meta_registrations.py").read_text(encoding="utf-8")
    named = re.findall(r'register_meta\("(\w+)"\)|torchvision::(\w+)', source)
    for name in {one or other for one, other in named}:
        library.define(f"{name}(Tensor x) -> Tensor")
    return True
