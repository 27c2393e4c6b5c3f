"""Exceptions that were looked into, and what was found."""

from __future__ import annotations

OPEN = "by default every query sees every key (a mask of ones is dropped), its eager attention is causal"
CAUSAL = "by default it is causal (no mask, and its module says so), its eager attention sees every key"
LEFT = "its softmax stays in float32"


def rounding(single: str, double: str, why: str = "") -> str:
    """What eager and default attention differ by in both types."""
    return f"roundings: {single} in float32 become {double} in float64{f' ({why})' if why else ''}"


TEXT = (
    "in eager its text backbone sees every token, where by default it keeps to the mask it is given, and "
    "all that reads the text differs; compared with an eager model whose text backbone runs as by default"
)
PADDED = (
    "its windows are padded, and what they weigh on the padding stands at no position of the map: the rows "
    "sum to what is left, and a note beside the picture says so"
)

KNOWN = {
    "aimv2": f"in its text tower, {OPEN}",
    "aimv2_text_model": OPEN,
    "colpali": OPEN,
    "deepseek_ocr2_sam_vision_model": PADDED,
    "got_ocr2_vision": PADDED,
    "sam_hq_vision_model": PADDED,
    "sam_vision_model": PADDED,
    "slanext_vision": PADDED,
    "unlimited_ocr_sam_vision_model": PADDED,
    "diffusion_gemma": rounding("1.1e-5", "2.9e-6", LEFT),
    "gemma4": rounding("1.2e-5", "2.3e-6", LEFT),
    "gemma4_text": rounding("1.2e-5", "2.3e-6", LEFT),
    "grounding-dino": TEXT,
    "mm-grounding-dino": TEXT,
    "lw_detr_vit": "its report has patches in the order of windows; put in that of the picture, it is equal",
    "moshi_depth": CAUSAL,
    "seggpt": "its windows of two pictures in a row are named, not shown",
    "mt5": rounding("2.8e-5", "6.2e-14"),
    "muse_spark": rounding("1.4e-5", "1.6e-6", LEFT),
    "paligemma": OPEN,
    "phi4_multimodal_vision": f"{CAUSAL}, and torch's kernel does likewise with unit values",
    "pop2piano": rounding("1.0e-5", "2.4e-14"),
    "reformer": "its chunks of keys are not followed: named, not shown",
    "rf_detr": rounding("1.1e-3", "1.3e-17"),
    "sam": PADDED,
    "umt5": rounding("1.2e-5", "1.8e-14"),
    "sam_hq": PADDED,
}
