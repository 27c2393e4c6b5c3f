"""Heads with planted roles, as a file of weights."""

import numpy as np

LETTERS = {"previous": "P", "self": "S", "first": "F", "offset": "O", "sharp": "H", "broad": "B"}
SHARES = (0.1, 0.1, 0.4, 0.1, 0.1, 0.2)  # of a few heads, those on the first token would count as chance
TOKENS = 13


def plant_roles(layers: int, heads: int, seed: int = 0) -> tuple[dict[str, np.ndarray], list[str]]:
    """Causal weights by layer ``[head, query, key]``, and the letters of their roles, a text a layer."""
    rng, at = np.random.default_rng(seed), np.arange(TOKENS)
    seen = np.tril(np.ones((TOKENS, TOKENS)))
    keys = {"previous": at - 1, "self": at, "first": 0 * at, "offset": at - 2}
    keys |= {"sharp": np.array([0, 0, 2, 1, 3, 5, 2, 6, 1, 8, 3, 7, 12])}
    files, letters = {}, []
    for layer in range(layers):
        names = rng.choice([*LETTERS], heads, p=SHARES)
        maps = np.repeat((seen / seen.sum(1, keepdims=True))[None], heads, 0)  # broad
        for head, name in enumerate(names):
            if name in keys:
                maps[head] *= 0.05
                maps[head, at, np.maximum(keys[name], 0)] += 0.95
        files[f"decoder.{layer:02}"] = maps.astype(np.float32)
        letters.append("".join(LETTERS[name] for name in names))
    return files, letters
