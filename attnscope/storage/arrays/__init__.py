"""Attention as data for the next program, and read back: NPZ, safetensors, JSON, CSV.

    save(kinds, "heads.npz")           # the suffix says the format
    saved = read("heads.npz")          # what was saved, or another tool's tensors

where ``kinds`` maps a kind of attention to pairs of a layer's number and its weights ``[head, query,
key]``. Weights are written as they are, in float32 at least. The layout is described in ``layout``.

Other tools read the files as they are. NumPy::

    import numpy
    maps = numpy.load("heads.npz")
    print(maps["encoder.03"][1])  # L3H1, [query, key]

safetensors::

    import safetensors.torch
    maps = safetensors.torch.load_file("heads.safetensors")
    print(maps["encoder.03"][1])  # L3H1, [query, key]

bertviz::

    import bertviz, numpy, torch
    maps = numpy.load("heads.npz")
    layers = [torch.from_numpy(maps[f"encoder.{n:02}"])[None] for n in range(4)]
    bertviz.head_view(layers, maps["tokens"].tolist())

CircuitsVis::

    import circuitsvis.attention, numpy
    maps = numpy.load("heads.npz")
    circuitsvis.attention.attention_patterns(maps["tokens"].tolist(), maps["encoder.03"])
"""

from attnscope.storage.arrays.read import Saved, read
from attnscope.storage.arrays.write import FORMATS, save

__all__ = ["FORMATS", "Saved", "read", "save"]
