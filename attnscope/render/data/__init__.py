"""Attention as data for the next program, and read back: NPZ, safetensors, JSON, CSV.

    save(kinds, "maps.npz")            # the suffix says the format
    saved = read("maps.npz")           # what was saved, or another tool's tensors

where ``kinds`` maps a kind of attention to pairs of a layer's number and its weights ``[head, query,
key]``. Weights are written as they are, in float32 at least. The layout is described in ``layout``.

Other tools read an NPZ as it is::

    maps = np.load("maps.npz")                                        # NumPy
    maps["encoder.05"][3]                                             # L5H3, [query, key]

    attention = [torch.from_numpy(maps[f"encoder.{n:02}"])[None] for n in range(6)]
    bertviz.head_view(attention, maps["tokens"].tolist())             # bertviz

    circuitsvis.attention.attention_patterns(                         # CircuitsVis
        tokens=maps["tokens"].tolist(), attention=maps["encoder.05"])
"""

from attnscope.render.data.read import Saved, read
from attnscope.render.data.write import FORMATS, save

__all__ = ["FORMATS", "Saved", "read", "save"]
