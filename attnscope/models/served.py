"""Queries and keys saved by a server, opened as a pass.

Serving plugins write tensors ``q`` and ``k`` of each attention module. Rows are computed on demand, as
for a trace. What the metadata does not say (``layout``, ``heads``, ``key_heads``, ``scale``, ``rotary``)
comes from a model's config or is assumed; the output lists every assumption.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnscope.attention import Token, tensor_of
from attnscope.axes import Array
from attnscope.errors import InputError
from attnscope.lazy import torch
from attnscope.models.inputs import read_labels, relabel, tokens_of_labels
from attnscope.models.served_hook import HookFile, find_hook
from attnscope.models.trace_model import TracedModel, WeightsFile
from attnscope.storage.files import reading
from attnscope.storage.tensors import TensorFile
from attnscope.storage.trace import SUFFIX, Trace, read_trace
from attnscope.storage.trace import layout as traced
from attnscope.text import clean

PART = re.compile(r"(.*)[./:_](q|k|query|key)(?:_(?:states|rot|out|output))?", re.DOTALL)
"""Tensor names: the module, and query or key."""

NUMBERED = ("layers", "layer", "h", "blocks", "block", "blk")  # what precedes the number of a layer

AROUND = {"model", "transformer", "decoder", "language", "module"}
"""Names of modules around the layers: any other prefix names a request."""

LONGEST_NAME, MOST_TOKENS = 200, 1 << 20  # most letters of a name that is parsed, and tokens of a request
IDS = ("input_ids", "token_ids", "ids")  # servers' names for the token ids

ENDS = {"q": ("cu_seqlens", "cu_seqlens_q", "query_start_loc"), "k": ("cu_seqlens_k", "cu_seqlens_kv")}
"""Servers' names for where the requests of a packed batch begin and end."""

LAYOUTS = {"token head size": (1, 0, 2), "head token size": (0, 1, 2), "token width": (1, 0, 2)}
"""Possible layouts of a tensor, and its axes as [head, token, size] once a width is split into heads."""

MOST_IDS = 1 << 31  # most ids of a vocabulary

UNSEEN = {"gpt_oss": "attention sinks", "bloom": "ALiBi", "mpt": "ALiBi"}
"""Model types whose rows depend on more than queries and keys, and on what."""

TURNED = frozenset({
    "arcee", "cohere", "ernie4_5", "gemma", "gemma2", "glm", "glm4", "granite", "granitemoe", "helium",
    "llama", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "seed_oss", "starcoder2"
})  # fmt: skip
"""Model types that rotate the whole queries and keys of every layer alike."""


def _first_keys(config: Any, layer: int, positions: Array) -> tuple[int | None, Array | None]:
    """The window of a layer, and the first key that each position sees, if not always the first of all."""
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",) * (layer + 1)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    chunk, kind = getattr(config, "attention_chunk_size", None), kinds[layer] if layer < len(kinds) else None
    if kind == "sliding_attention" and window:
        return window, (positions + 1 - window).clip(0)
    if kind == "chunked_attention" and chunk:
        return window, positions // chunk * chunk
    return None, None


def rotary_of(config: Any) -> Callable[[Array, int], Array]:
    """The rotary embedding of states from a position on, by the model's code.  [head, token, size]"""
    from transformers import AutoModel

    alone = f"rotary embeddings of {config.model_type} cannot be applied alone: save states after it"
    if config.model_type not in TURNED:
        raise ValueError(alone)
    module = import_module(AutoModel._model_mapping[type(config)].__module__)
    classes = [each for name, each in vars(module).items() if name.endswith("RotaryEmbedding")]
    apply = getattr(module, "apply_rotary_pos_emb", None)
    if len(classes) != 1 or apply is None:
        raise ValueError(alone)

    def turn(states: Array, start: int) -> Array:
        tensor = tensor_of(states)[None]  # [1, head, token, size]
        try:
            cos, sin = classes[0](config)(tensor, torch.arange(start, start + tensor.shape[2])[None])
            turned: Array = apply(tensor, tensor, cos, sin)[0][0].numpy()
        except (TypeError, RuntimeError):
            raise ValueError(alone) from None
        return turned

    return turn


class TensorName(NamedTuple):
    """What a tensor's name says."""

    request: str
    layer: int
    part: str


class Slice(NamedTuple):
    """What is read of a tensor: its sizes as [head, token, size], its rows, and the position of the first."""

    sizes: tuple[int, int, int]
    rows: slice
    start: int


@dataclass(eq=False)
class ServedArrays(Mapping[str, Array]):
    """The tensors of one request as [1, head, token, size], read on demand, and masks."""

    file: TensorFile | HookFile
    layout: str
    slices: Mapping[str, Slice]
    turn: Callable[[Array, int], Array] | None  # the rotary embedding, if still to be applied
    masks: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._read = lru_cache(maxsize=4)(self._arrange)

    def __getitem__(self, name: str) -> Array:
        return self.masks[name] if name in self.masks else self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.slices, *self.masks))

    def __len__(self) -> int:
        return len(self.slices) + len(self.masks)

    def _arrange(self, name: str) -> Array:
        sizes, rows, start = self.slices[name]
        axes = LAYOUTS[self.layout]
        array = self.file[name].reshape([sizes[axis] for axis in axes]).transpose(axes)[:, rows]
        if self.file.entries[name].dtype == "BF16":
            array = array.view(np.uint16)
        return (array if self.turn is None else self.turn(traced.to_float(array), start))[None]


def _sizes_in(layout: str, sizes: Sequence[int], heads: int | None) -> tuple[int, int, int] | None:
    """The numbers of heads, tokens and head size of a tensor, if it fits this layout."""
    axes = 2 if layout == "token width" else 3
    if len(sizes) < axes or any(size != 1 for size in sizes[:-axes]) or 0 in sizes:
        return None
    if layout == "token width":
        tokens, width = sizes[-2:]
        return (heads, tokens, width // heads) if heads and not width % heads else None
    shape = tuple(sizes[-3:][axis] for axis in LAYOUTS[layout])
    return (shape[0], shape[1], shape[2]) if heads in (None, shape[0]) else None


class ServedModel(TracedModel):
    """A server's queries and keys in place of a model."""

    what = "a file of queries and keys"


def open_file(
    path: str | Path, labels: Path | None = None, model: str | None = None, request: int | None = None
) -> TracedModel:
    """A trace, a server's queries and keys of a ``model``, or weights; ``labels`` name positions."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"no such file: {path}")
    if hook := find_hook(path):
        return open_served(hook, labels, model, request, hook=True)
    if path.suffix.lower() == ".safetensors" and is_served(path):
        return open_served(path, labels, model, request)
    if model is not None or request is not None:
        raise InputError(f"{path} has text and weights: leave out the text and the model")
    if path.suffix.lower() == SUFFIX:
        if labels is not None:
            raise InputError(f"{path} is a trace, which has its tokens: labels are for files of weights")
        return TracedModel(read_trace(path), path)
    return WeightsFile(path, labels)


def is_served(path: Path) -> bool:
    """Whether a file holds queries and keys, judged by names."""
    try:
        return any(_place(name) for name in TensorFile(path))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _place(name: str) -> TensorName | None:
    """The request, layer and part of a tensor of that name, if it is queries or keys."""
    match = PART.fullmatch(name) if len(name) <= LONGEST_NAME else None
    path = re.split(r"[./:_]", match[1]) if match else []
    numbers = [at for at, each in enumerate(path) if re.fullmatch(r"\d{1,4}", each, re.ASCII)]
    if match is None or not numbers:
        return None
    at = next((at for at in numbers if at and path[at - 1] in NUMBERED), numbers[-1])
    request = ".".join(each for each in path[:at] if each not in AROUND | {*NUMBERED})
    return TensorName(request, int(path[at]), match[2][0])


def open_served(
    path: Path,
    labels: Path | None = None,
    model: str | None = None,
    request: int | None = None,
    *,
    hook: bool = False,
) -> ServedModel:
    """The pass of one request, counted from 1; ``model`` names the model with its config and tokenizer.

    With ``hook``, the file is one rank's of vLLM-Hook.

    Raises ``InputError`` for a file that does not fit, ``ModelError`` for a model that cannot be loaded.
    """
    config: Any = None
    if model is not None:
        from attnscope.models.huggingface.reader import FolderReader
        from attnscope.models.untrusted_folder import ModelSource

        source = ModelSource(model, None, False)
        config = source.load_config()
    with reading(path, "queries and keys from"):
        file: TensorFile | HookFile = HookFile(path, request) if hook else TensorFile(path)
        tensors = _choose_request(file, None if hook else request)
        trace = ServedReader(file, config and config.get_text_config(), tensors).trace()
        rows = slice(None) if tensors.bounds is None else tensors.bounds["k"]
        keys: Any = trace.axis(1)
        ids = next((np.ravel(file[name]) for name in IDS if name in file), None)
        if ids is not None and not (ids.dtype.kind in "iu" and ((ids >= 0) & (ids < MOST_IDS)).all()):
            raise ValueError("its token ids are not whole numbers of a vocabulary")
    if labels is not None:
        keys = relabel(keys, tokens_of_labels(read_labels(labels)))
    elif ids is not None and config is not None:
        vocabulary = FolderReader(str(model), source.load_tokenizer(config)).vocabulary
        keys = vocabulary.extend((), (ids if len(ids) == len(keys) else ids[rows]).tolist())
    description = trace.description
    if isinstance(keys, tuple) and len(keys) == len(trace.axis(1)):
        queries: tuple[Token, ...] = keys[len(keys) - len(trace.axis(0)) :]
        description = replace(description, axes=(queries, keys))
    elif ids is not None:
        note = f"it has ids of {len(keys):,} tokens and keys of {len(trace.axis(1)):,}: no labels"
        description = replace(description, model_notes=(*description.model_notes, note))
    about = replace(description.model, name=model or path.stem)
    served = ServedModel(Trace(replace(description, model=about), trace.arrays))
    served.path = path
    return served


class RequestTensors(NamedTuple):
    """The tensors of one request: their names by layer and part, and their rows in a packed batch."""

    names: Mapping[int, Mapping[str, str]]
    bounds: Mapping[str, slice] | None


@dataclass
class ServedReader:
    """Reads one request of a file; what the file does not say comes from a config, or is noted as assumed."""

    file: TensorFile | HookFile
    config: Any
    tensors: RequestTensors
    assumed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = getattr(self.config, "num_attention_heads", None)
        key_count = getattr(self.config, "num_key_value_heads", None) or count
        self.heads = {"q": self._count("heads") or count, "k": self._count("key_heads") or key_count}

    def trace(self) -> Trace:
        """The pass. Raises ``ValueError`` if the file does not fit."""
        kind = getattr(self.config, "model_type", "")
        if more := UNSEEN.get(kind) or ("ALiBi" if getattr(self.config, "alibi", None) else None):
            raise ValueError(f"rows of {kind} depend on {more}, which queries and keys do not contain")
        layout = self._layout()
        applied = self._choose("rotary", "applied", ("applied", "none")) == "applied"
        if not applied and self.config is None:
            raise ValueError("its rotary embedding is not applied: name the model (-m MODEL)")
        slices, queries, keys = self._slices(layout)
        arrays = ServedArrays(self.file, layout, slices, None if applied else rotary_of(self.config))
        scale = self._scale(arrays[next(iter(slices))].shape[-1])
        norms = [] if applied else ["norms of queries and keys applied"]
        assumed = [*self.assumed, *norms, "causal", "no bias, no attention sinks"]
        layers = sorted(self.tensors.names.items())
        description = traced.TraceDescription(
            model=traced.About("", "", None, 0, "cpu"),
            model_notes=(f"assumed, as the file does not say: {', '.join(assumed)}",),
            tokens=1,
            labels=(traced.Labels("decoder", 0, 1),),
            axes=(traced.Positions(keys - queries, keys), traced.Positions(0, keys)),
            calls=tuple(_call(arrays, layer, pair, self.config, scale) for layer, pair in layers),
        )
        return Trace(description, arrays)

    def _read(self, name: str, default: str) -> str:
        """An entry of the metadata, or the default, which is noted."""
        if name not in self.file.metadata:
            self.assumed.append(f"{name} {default}")
        return self.file.metadata.get(name, default)

    def _choose(self, name: str, default: str, choices: Collection[str]) -> str:
        """The same of an entry with few possible values. Raises ``ValueError`` for another one."""
        value = self._read(name, default)
        if value not in choices:
            raise ValueError(f"its {name} is {value!r:.40}: it may be {', '.join(choices)}")
        return value

    def _count(self, name: str) -> int | None:
        """A number of heads. Raises ``ValueError`` for anything else."""
        value = self.file.metadata.get(name)
        if value is not None and not re.fullmatch(r"[1-9]\d{0,4}", value, re.ASCII):
            raise ValueError(f"its {name} is {value!r:.40}, not a number")
        return None if value is None else int(value)

    def _layout(self) -> str:
        """The only layout that fits, or the one that the file names. Raises ``ValueError``."""
        file, heads = self.file, self.heads
        ends = _ends(file, ENDS["k"]) or _ends(file, ENDS["q"]) or []
        counts = [math.prod(file.entries[name].shape) for name in IDS if name in file]
        total = next(iter([*ends[-1:], *counts]), None)
        first = next(iter(self.tensors.names.values()))
        sizes = {part: file.entries[name].shape for part, name in first.items()}
        fitting = _layouts(sizes, heads, total)
        if len(fitting) == 1 and "layout" not in file.metadata:
            return fitting[0]
        layout = self._choose("layout", next(iter(fitting), "token head size"), LAYOUTS)
        if layout not in fitting:
            shapes = " and ".join(f"{part} {list(size)}" for part, size in sizes.items())
            of_heads = f"{heads['q'] or 'unknown'} heads, {heads['k'] or 'unknown'} of keys"
            has_heads = getattr(self.config, "num_attention_heads", None)
            advice = "" if has_heads else "; name the model (-m MODEL), whose config has the heads"
            raise ValueError(f"its shapes {shapes} are not queries and keys of {of_heads}{advice}")
        return layout

    def _slices(self, layout: str) -> tuple[dict[str, Slice], int, int]:
        """What is read of each tensor, and the numbers of queries and keys. Raises ``ValueError``."""
        slices: dict[str, Slice] = {}
        lengths = set()
        for layer, pair in sorted(self.tensors.names.items()):
            read: dict[str, tuple[int, int, int]] = {}  # heads, rows and size of queries and keys
            for part in "kq":  # from the keys' end: the last query is at the last key
                name = pair[part]
                sizes = _sizes_in(layout, self.file.entries[name].shape, self.heads[part])
                if sizes is None:
                    raise ValueError(f"its tensor {name!r:.60} does not have the layout {layout}")
                rows = slice(0, sizes[1]) if self.tensors.bounds is None else self.tensors.bounds[part]
                if rows.stop > sizes[1]:
                    raise ValueError(f"its requests end at row {rows.stop:,}: {name!r:.60} has {sizes[1]:,}")
                read[part] = sizes[0], rows.stop - rows.start, sizes[2]
                slices[name] = Slice(sizes, rows, read["k"][1] - read[part][1])
            if read["q"][0] % read["k"][0] or read["q"][2] != read["k"][2]:
                both = f"queries {list(read['q'])} do not fit keys {list(read['k'])}"
                raise ValueError(f"layer {layer}: {both}")
            lengths.add((read["q"][1], read["k"][1]))
        if len(lengths) > 1 or not all(0 < queries <= keys <= MOST_TOKENS for queries, keys in lengths):
            counts = ", ".join(f"{queries:,} × {keys:,}" for queries, keys in sorted(lengths))
            raise ValueError(f"its layers have {counts} queries and keys: they are not of one request")
        return slices, *lengths.pop()

    def _scale(self, size: int) -> float:
        """The scale of scores: that of the file or of the config, else 1/√size. Raises ``ValueError``."""
        scalar = getattr(self.config, "query_pre_attn_scalar", None)
        scale = getattr(self.config, "attention_multiplier", None) if scalar is None else scalar**-0.5
        if "scale" in self.file.metadata or scale is None:
            entry = self._read("scale", f"1/√{size}")
            scale = float(entry) if "scale" in self.file.metadata else size**-0.5
        if not 0 < scale < math.inf:
            raise ValueError(f"its scale is {scale}, not a number above 0")
        return float(scale)


def _layouts(
    sizes: Mapping[str, Sequence[int]], heads: Mapping[str, int | None], total: int | None
) -> list[str]:
    """The possible layouts of a pair of queries and keys, the usual one first; ``total`` keys if known."""
    order = sorted(LAYOUTS, key=lambda each: (each != "head token size") == (len(sizes["q"]) > 3))
    fitting = []
    for layout in order:
        query, key = (_sizes_in(layout, sizes[part], heads[part]) for part in "qk")
        if query and key and query[2] == key[2] and not query[0] % key[0] and query[1] <= key[1]:
            fitting.append((layout, key[1]))
    return [each for each, keys in fitting if keys == total] or [each for each, _ in fitting]


def _ends(file: TensorFile | HookFile, names: Sequence[str]) -> list[int] | None:
    """Where requests begin and end, if the file says. Raises ``ValueError`` for invalid values."""
    name = next((name for name in names if name in file), None)
    if name is None:
        return None
    ends = file[name]
    whole = ends.ndim == 1 and ends.dtype.kind in "iu" and len(ends) > 1
    if not whole or ends[0] != 0 or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"its {name} are not where requests begin and end: write 0 and growing numbers")
    return [int(end) for end in ends]


def _choose_request(file: TensorFile | HookFile, request: int | None) -> RequestTensors:
    """The tensors of a request, counted from 1. Raises ``ValueError`` if several need a number."""
    places = {name: place for name in file if (place := _place(name))}
    names = list(dict.fromkeys(place.request for place in places.values()))
    ends = _ends(file, ENDS["q"])
    if ends is None:
        chosen = _number_of_request(request, len(names), names[1:] and names)
        return RequestTensors(_pair_tensors(places, names[chosen]), None)
    count = len(ends) - 1
    if count < 1:
        raise ValueError("it says where requests begin and end, but holds none")
    if len(names) > 1:
        raise ValueError(f"it names {len(names):,} requests and packs {count:,}: keep one or the other")
    chosen = _number_of_request(request, count)
    pairs = _pair_tensors(places, names[0])
    key_ends = _ends(file, ENDS["k"]) or ends
    if len(key_ends) != len(ends):
        raise ValueError(f"it packs {count:,} requests of queries and {len(key_ends) - 1:,} of keys")
    both = {"q": ends, "k": key_ends}
    return RequestTensors(pairs, {part: slice(*each[chosen : chosen + 2]) for part, each in both.items()})


def _number_of_request(request: int | None, count: int, names: Sequence[str] = ()) -> int:
    """The chosen request, from 0. Raises ``ValueError`` for none of several."""
    if 1 <= (request or 1) <= count and (request is not None or count == 1):
        return (request or 1) - 1
    names_text = f" ({', '.join(map(repr, names[:5]))})" if names else ""
    raise ValueError(f"it holds {count:,} requests: choose one with --line, 1 to {count:,}{names_text:.200}")


def _pair_tensors(places: Mapping[str, TensorName], request: str) -> dict[int, dict[str, str]]:
    """The names of the queries and keys of each layer of a request. Raises ``ValueError``."""
    pairs: dict[int, dict[str, str]] = {}
    for name, place in places.items():
        if place.request == request:
            other = pairs.setdefault(place.layer, {}).setdefault(place.part, name)
            if other != name:
                raise ValueError(f"{other!r:.60} and {name!r:.60} are {place.part} of one layer: keep one")
    for pair in pairs.values():
        if len(pair) < 2:
            raise ValueError(f"{next(iter(pair.values()))!r:.60} stands alone: queries need their keys")
    return pairs


def _call(
    arrays: ServedArrays, layer: int, pair: Mapping[str, str], config: Any, scale: float
) -> traced.TracedCall:
    """The attention of a layer."""
    (heads, *_), rows, first_query = arrays.slices[pair["q"]]
    key_heads, keys = arrays.slices[pair["k"]].sizes[0], first_query + rows.stop - rows.start
    positions = np.arange(first_query, keys, dtype=np.int32)
    window, first = _first_keys(config, layer, positions)
    softcap = getattr(config, "attn_logit_softcapping", None) or None
    masks: tuple[traced.Mask, ...] = ()
    if first is not None:
        arrays.masks[f"window {layer}"] = np.stack([first, positions + 1], -1)[None, None]
        masks = (traced.Mask("runs", f"window {layer}", keys),)
    types = {"F16": "float16", "BF16": "bfloat16", "F64": "float64"}
    return traced.TracedCall(
        name=clean(pair["q"]),
        call=0,
        kind="decoder",
        layer=layer,
        source="served",
        kernel="a server's",
        heads=heads,
        key_heads=key_heads,
        offset=first_query,
        dtype=types.get(arrays.file.entries[pair["q"]].dtype, "float32"),
        window=window,
        queries=0,
        keys=1,
        rows=traced.TracedScores(
            "scores", pair["q"], pair["k"], None, scale, (), masks, first_query, softcap, None
        ),
    )
