"""Queries and keys that a server wrote while it ran, opened as the pass that they are of.

Serving plugins write tensors ``q`` and ``k`` of each attention module. Their rows are computed when they are
asked for, as those of a trace are. What the metadata does not say (``layout``, ``heads``, ``key_heads``,
``scale``, ``rotary``) comes from the config of a model or is assumed, and the output says what was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from attnscope import __version__
from attnscope.attention import Token
from attnscope.axes import Array
from attnscope.errors import InputError
from attnscope.models.kept import FileModel, TracedModel, WeightsFile
from attnscope.models.labels import read_labels, relabel, tokens_of
from attnscope.storage.files import reading
from attnscope.storage.tensors import TensorFile
from attnscope.storage.trace import SUFFIX, Trace, read_trace
from attnscope.storage.trace.layout import (
    FORMAT,
    About,
    Labels,
    Mask,
    Positions,
    TracedCall,
    TraceDescription,
    TracedScores,
    to_float,
)
from attnscope.text import clean

NAME = re.compile(
    r"(?P<request>.*?)(?:\b(?:model|transformer|decoder|layers?|h|blocks?)[._/])*(?:layer_?|block_?)?"
    r"(?P<layer>\d{1,4})[._/](?:.*[._/])?(?P<part>q|k|query|key)(?:_(?:states|rot|out|output))?"
)
"""How tensors are called: an optional request, the layer, and which of the two it is."""

LONGEST_NAME = 200
"""Letters of a name that is looked at: the time that a pattern takes grows faster than a name."""

IDS, ENDS = ("input_ids", "token_ids", "ids"), ("cu_seqlens", "cu_seqlens_q", "query_start_loc")
"""What servers call the ids of the tokens, and where the requests of a packed batch begin and end."""

LAYOUTS = {"token head size": (1, 0, 2), "head token size": (0, 1, 2), "token width": (1, 0, 2)}
"""How a tensor may lie, and its axes as [head, token, size], once a width is split into its heads."""

MOST, MOST_IDS = 1 << 20, 1 << 31
"""Tokens of a request, and ids of a vocabulary."""


@dataclass(frozen=True)
class Shape:
    """What a model's config says of its attention; ``None`` where nobody says."""

    heads: int | None = None
    key_heads: int | None = None
    scale: float | None = None
    softcap: float | None = None
    windows: tuple[int | None, ...] = ()
    theta: float | None = None  # of a rotary embedding of the plain kind

    @staticmethod
    def of(config: Any) -> Shape:
        """That of a config of transformers."""
        config = config.get_text_config()

        def say(*names: str) -> Any:
            return next((found for name in names if (found := getattr(config, name, None))), None)

        asked, rotary = say("query_pre_attn_scalar"), say("rope_parameters", "rope_scaling") or {}
        plain = rotary.get("rope_type", "default") == "default"
        kinds = say("layer_types") or ()
        return Shape(
            say("num_attention_heads"),
            say("num_key_value_heads", "num_attention_heads"),
            say("attention_multiplier") if asked is None else float(asked) ** -0.5,
            say("attn_logit_softcapping"),
            tuple(say("sliding_window") if kind == "sliding_attention" else None for kind in kinds),
            (rotary.get("rope_theta") or say("rope_theta")) if plain else None,
        )


@dataclass(eq=False)
class ServedArrays(Mapping[str, Array]):
    """The tensors of one request as [1, head, token, size], read when they are asked for, and masks."""

    file: TensorFile
    layout: str
    heads: Mapping[str, int]
    rows: slice
    theta: float | None  # of the rotary embedding, where that is still to be applied
    masks: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._read = lru_cache(maxsize=4)(self._lay_out)

    def __getitem__(self, name: str) -> Array:
        return self.masks[name] if name in self.masks else self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.heads, *self.masks))

    def __len__(self) -> int:
        return len(self.heads) + len(self.masks)

    def _lay_out(self, name: str) -> Array:
        array = self.file[name]
        while array.ndim > 3 and len(array) == 1:
            array = array[0]
        if self.layout == "token width":
            array = array.reshape(len(array), self.heads[name], -1)
        if array.ndim != 3:
            raise ValueError(
                f"its tensor {name!r:.60} has the shape {list(array.shape)}: {self.layout} is read"
            )
        array = array.transpose(LAYOUTS[self.layout])[:, self.rows]
        if self.file.entries[name].dtype == "BF16":
            array = array.view(np.uint16)
        return (array if self.theta is None else turn(to_float(array), self.theta))[None]


def turn(states: Array, theta: float) -> Array:
    """Rotary embedding, one half of a head's numbers turned against the other.  [head, token, size]"""
    size = states.shape[-1]
    angle = np.arange(states.shape[1])[:, None] * theta ** -(
        np.arange(0, size, 2) / size
    )  # [token, size / 2]
    angle = np.concatenate([angle, angle], -1)
    left, right = states[..., : size // 2], states[..., size // 2 :]
    turned: Array = states * np.cos(angle) + np.concatenate([-right, left], -1) * np.sin(angle)
    return turned.astype(np.float32)


class ServedModel(TracedModel):
    """Queries and keys of a server in a model's place."""

    what = "a file of queries and keys"


def open_file(
    path: str | Path, labels: Path | None = None, model: str | None = None, request: int | None = None
) -> FileModel:
    """A trace, by its suffix, queries and keys of a server, or a file of weights; ``labels`` name positions.

    ``model`` and ``request`` are of a server's file alone. Raises ``InputError``.
    """
    path = Path(path)
    if path.suffix.lower() == ".safetensors" and is_served(path):
        return open_served(path, labels, model, request)
    if model is not None or request is not None:
        raise InputError(f"{path} has text and weights: leave out the text and the model")
    if path.suffix.lower() == SUFFIX:
        if labels is not None:
            raise InputError(f"{path} is a trace, which has its tokens: labels are for files of weights")
        return TracedModel(read_trace(path), clean(path.name))
    return WeightsFile(path, labels)


def is_served(path: Path) -> bool:
    """Whether a file holds queries and keys by name."""
    try:
        return any(_match(name) for name in TensorFile(path))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _match(name: str) -> re.Match[str] | None:
    return NAME.fullmatch(name) if len(name) <= LONGEST_NAME else None


def open_served(
    path: Path, labels: Path | None = None, model: str | None = None, request: int | None = None
) -> ServedModel:
    """The pass of one request, counted from 1; ``model`` names whose config and tokenizer belong to it.

    Raises ``InputError`` for a file that does not fit, ``ModelError`` for a model that cannot be had.
    """
    config: Any = None
    if model is not None:
        from attnscope.models.huggingface.reader import FolderReader
        from attnscope.models.huggingface.source import Source

        source = Source(model, None, False)
        config = source.load_config()
    with reading(path, "queries and keys from"):
        file = TensorFile(path)
        trace, rows = _trace(file, Shape() if config is None else Shape.of(config), request)
        keys: Any = trace.axis(1)
        ids = next((np.ravel(file[name])[rows] for name in IDS if name in file), None)
        if ids is not None and not (ids.dtype.kind in "iu" and ((ids >= 0) & (ids < MOST_IDS)).all()):
            raise ValueError("the ids of its tokens are no whole numbers of a vocabulary")
    if labels is not None:
        keys = relabel(keys, tokens_of(read_labels(labels)))
    elif ids is not None and config is not None:
        spelled = FolderReader(str(model), source.load_tokenizer(config)).vocabulary
        keys = spelled.extend((), ids.tolist())
    description = trace.description
    if isinstance(keys, tuple) and len(keys) == len(trace.axis(1)):
        queries: tuple[Token, ...] = keys[len(keys) - len(trace.axis(0)) :]
        description = replace(description, axes=(queries, keys))
    about = replace(description.model, name=model or path.stem)
    return ServedModel(Trace(replace(description, model=about), trace.arrays))


def _trace(file: TensorFile, shape: Shape, request: int | None) -> tuple[Trace, slice]:
    """The pass of a request, and which of all tokens are its own. Raises ``ValueError``."""
    pairs, rows = _choose(file, request)
    metadata, assumed = file.metadata, []

    def say(name: str, otherwise: Any, known: Any = None) -> Any:
        if name not in metadata and known is None:
            assumed.append(f"{name} {otherwise}")
        return metadata.get(name, otherwise if known is None else known)

    sizes = file.entries[next(iter(pairs.values()))["q"]].shape[-3:]
    if len(sizes) < 2:
        raise ValueError(f"its queries have the shape {list(sizes)}, neither tokens nor heads")
    flat, turned = len(sizes) == 2, sizes[0] == shape.heads and sizes[1] != shape.heads  # as sizes tell
    found = "head token size" if turned else None
    layout = "token width" if flat else say("layout", "token head size", found)
    rotary = say("rotary", "applied")
    for name, told, known in (("layout", layout, LAYOUTS), ("rotary", rotary, ("applied", "none"))):
        if told not in known:
            raise ValueError(f"its {name} is {told!r:.40}: it may be {', '.join(known)}")
    if rotary == "none" and shape.theta is None:
        raise ValueError("its rotary embedding is not applied: name a model with the default one (-m MODEL)")
    heads = {
        pair[part]: int(metadata.get(name, known or 0))
        for pair in pairs.values()
        for part, name, known in (("q", "heads", shape.heads), ("k", "key_heads", shape.key_heads))
    }
    if flat and not all(heads.values()):
        raise ValueError(
            "its tensors are token × width: name the model (-m MODEL), whose config has the heads"
        )
    arrays = ServedArrays(file, layout, heads, rows, None if rotary == "applied" else shape.theta)
    lengths = {tuple(arrays[pair[part]].shape[2] for part in "qk") for pair in pairs.values()}
    if len(lengths) > 1 or not all(0 < queries <= keys <= MOST for queries, keys in lengths):
        told = ", ".join(f"{queries:,} × {keys:,}" for queries, keys in sorted(lengths))
        raise ValueError(f"its layers have {told} queries and keys: they belong to no one request")
    ((queries, keys),) = lengths
    size = arrays[next(iter(heads))].shape[-1]
    scale = say("scale", f"1/√{size}", shape.scale)
    scale = size**-0.5 if isinstance(scale, str) and scale.startswith("1/") else float(scale)
    calls = tuple(_call(arrays, layer, pairs[layer], shape, scale) for layer in sorted(pairs))
    assumed += ["causal"]
    note = f"assumed, as the file does not say: {', '.join(assumed)}"
    axes = Positions(keys - queries, keys), Positions(0, keys)
    nothing: dict[str, Any] = dict.fromkeys(
        ("text_notes", "messages", "images", "without_attention", "failures", "changes", "figures", "words"),
        (),
    )
    description = TraceDescription(
        trace=FORMAT,
        attnscope=__version__,
        kept="",
        model=About("", "", None, 0, "cpu"),
        model_notes=(note,),
        weighed="",
        text=None,
        tokens=1,
        written=None,
        labels=(Labels("decoder", 0, 1),),
        heard=None,
        axes=axes,
        calls=calls,
        **nothing,
    )
    return Trace(description, arrays), rows


def _choose(file: TensorFile, request: int | None) -> tuple[dict[int, dict[str, str]], slice]:
    """The names of the queries and keys of each layer of a request, and which of all tokens are its own."""
    found = {name: match for name in file if (match := _match(name))}
    named = list(dict.fromkeys(match["request"] for match in found.values()))
    ends = next((file[name].tolist() for name in ENDS if name in file), None)
    count = len(named) if ends is None else len(ends) - 1
    if count < 1:
        raise ValueError("it says where requests begin and end, and there is none")
    if not 1 <= (request or 1) <= count or (request is None and count > 1):
        raise ValueError(f"it holds {count:,} requests: choose one with --line, 1 to {count:,}")
    chosen = (request or 1) - 1
    mine, rows = (
        (named[chosen], slice(None)) if ends is None else (named[0], slice(*ends[chosen : chosen + 2]))
    )
    pairs: dict[int, dict[str, str]] = {}
    for name, match in found.items():
        if match["request"] == mine:
            pairs.setdefault(int(match["layer"]), {})[match["part"][0]] = name
    for pair in pairs.values():
        if len(pair) < 2:
            raise ValueError(f"{next(iter(pair.values()))!r:.60} stands alone: queries need their keys")
    return pairs, rows


def _call(
    arrays: ServedArrays, layer: int, pair: Mapping[str, str], shape: Shape, scale: float
) -> TracedCall:
    """The attention of a layer."""
    query, key = arrays[pair["q"]], arrays[pair["k"]]
    (heads, queries), (key_heads, keys) = query.shape[1:3], key.shape[1:3]
    if not key_heads or heads % key_heads or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"layer {layer}: queries {list(query.shape[1:])} do not fit keys {list(key.shape[1:])}"
        )
    window = shape.windows[layer] if layer < len(shape.windows) else None
    masks: tuple[Mask, ...] = ()
    if window is not None:
        last = np.arange(keys - queries, keys, dtype=np.int32) + 1
        arrays.masks[f"window {layer}"] = np.stack([(last - window).clip(0), last], -1)[None, None]
        masks = (Mask("runs", f"window {layer}", keys),)
    types = {"F16": "float16", "BF16": "bfloat16", "F64": "float64"}
    return TracedCall(
        name=pair["q"],
        call=0,
        kind="decoder",
        layer=layer,
        step=0,
        source="served",
        kernel="a server's",
        batch=1,
        heads=heads,
        key_heads=key_heads,
        offset=keys - queries,
        dtype=types.get(arrays.file.entries[pair["q"]].dtype, "float32"),
        window=window,
        refusal=None,
        difference=None,
        queries=0,
        keys=1,
        rows=TracedScores(
            "scores", pair["q"], pair["k"], None, scale, (), masks, keys - queries, shape.softcap, None
        ),
    )
