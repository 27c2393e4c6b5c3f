"""The usual loop: one text after another, eager weights of every layer, scores in NumPy.

All heads at once: every default measure of attnscope, with its baseline under uniform attention and the sums
for standard errors.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer


@cache
def _load_eager(name: str):
    eager = AutoModel.from_pretrained(name, attn_implementation="eager")
    return eager.eval(), AutoTokenizer.from_pretrained(name)


def by_loop(name: str, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """The scores of every head of a model of transformers.  -> {measure: [value|baseline, layer, head]}"""
    (eager, tokenizer), kept = _load_eager(name), dict[str, np.ndarray]()
    for text in texts:
        encoded = tokenizer(text, return_special_tokens_mask=True)
        ids, special = encoded["input_ids"], encoded.pop("special_tokens_mask")
        with torch.inference_mode():
            inputs = {name: torch.tensor([field]) for name, field in encoded.items()}
            weights = torch.cat(eager(**inputs, output_attentions=True).attentions)
        tokens = tokenizer.convert_ids_to_tokens(ids)
        marks = [all(unicodedata.category(c)[0] == "P" for c in token) for token in tokens]
        found = scores(weights.numpy(), np.array(ids), np.array(special, bool), np.array(marks))
        for measure, sums in found.items():
            kept[measure] = kept.get(measure, 0) + sums
    return {measure: sums[:2] / sums[4] for measure, sums in kept.items() if sums[4].any()}


def scores(rows, ids, special, marks):
    """All default measures of every head of one text.

    ``rows`` is [layer, head, query, key], the others [token]. -> {measure: [sum over rows of the value | of
    the baseline, value², value · rows, rows, and rows²; layer, head]}
    """
    n = len(ids)
    position = np.arange(n)
    gap = position - position[:, None]
    same = (ids == ids[:, None]) & (gap != 0)
    follows = np.zeros((n, n), bool)
    follows[:, 1:] = (ids[:, None] == ids[:-1]) & (position[1:] <= position[:, None])

    def measured(rows):
        entropy = -(rows * np.log(np.maximum(rows, 1e-30))).sum(-1)  # [layer, head, query]
        return {
            "entropy": entropy,
            "normalized_entropy": entropy / np.log(n),
            "effective_keys": np.exp(entropy),
            "confidence": rows.max(-1),
            "no_key": 1 - rows.sum(-1),
            "distance": (rows * abs(gap)).sum(-1),
            "offset": (rows * gap).sum(-1),
            "self": np.diagonal(rows, 0, 2, 3),
            "previous": np.diagonal(rows, -1, 2, 3),
            "next": np.diagonal(rows, 1, 2, 3),
            "first": rows[..., 1:, 0],
            "special": rows[..., special].sum(-1),
            "punctuation": rows[..., marks].sum(-1),
            "duplicate": (rows * same).sum(-1)[..., same.any(-1)],
            "induction": (rows * follows).sum(-1)[..., follows.any(-1)],
        }

    even = measured(np.full((1, 1, n, n), 1 / n))
    found = {}
    for name, values in measured(rows).items():
        count = np.full(values.shape[:2], values.shape[-1], float)
        value, baseline = values.sum(-1, dtype=float), np.broadcast_to(even[name].sum(-1), count.shape)
        found[name] = np.stack([value, baseline, value**2, value * count, count, count**2])
    offsets = rows.argmax(-1) - position
    for head in offsets.reshape(-1, n):
        np.bincount(head + n, minlength=2 * n)
    return found
