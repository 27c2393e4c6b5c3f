"""Exceptions that were looked into, and what was found."""

from __future__ import annotations

OPEN = "by default every query sees every key (a mask of ones is dropped), its eager attention is causal"
CAUSAL = "by default it is causal (no mask, and its module says so), its eager attention sees every key"
ROUNDING = "roundings of the first layer become 1.2e-5 in the second; in float64 it is 2.3e-6"
TEXT = (
    "in eager its text backbone sees every token, where by default it keeps to the mask it is given, and "
    "all that reads the text differs; compared with an eager model whose text backbone runs as by default"
)
PADDED = (
    "its windows are padded, and what they weigh on the padding stands at no position of the map: the rows "
    "sum to what is left"
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
    "gemma4": ROUNDING,
    "gemma4_text": ROUNDING,
    "grounding-dino": TEXT,
    "mm-grounding-dino": TEXT,
    "moshi_depth": CAUSAL,
    "paligemma": OPEN,
    "phi4_multimodal_vision": CAUSAL,
    "sam": PADDED,
    "sam_hq": PADDED,
}
