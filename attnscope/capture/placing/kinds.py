"""Which kind of attention a call is, and where its queries stand among its keys.

Both come from the module's path and class, from the tensors, and from how the module was called; never
from the model's config, which is wrong or raises for mixed models.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnscope.attention import Attention, Axis, HeldRows, Kind, Section, Site
from attnscope.capture.hooks.modules import CACHES, Call
from attnscope.capture.placing.labels import label_axes, labels_by_length
from attnscope.capture.record import NUMBER, Record, is_within, pattern
from attnscope.capture.rows.capture import CapturedCall
from attnscope.capture.rows.scores import RealRows, ScoredRows

CROSS = re.compile(r"cross|enc_?dec|encoder_attn|encoder_attention|encoder_decoder", re.I)
DECODER = re.compile(
    r"(^|[._])decoders?($|[._])|decoder_?layer|(^|[._])language_model[._](model[._])?layers[._]", re.I
)
"""Paths of decoders; some see a prefix or a picture in both directions."""

ATTENDING = re.compile(r"att(entio)?n|attend", re.I)
"""Classes of modules that attend."""

_kinds_by_model: WeakKeyDictionary[nn.Module, dict[str, Kind]] = WeakKeyDictionary()
"""Kinds that calls of a model showed in any recording, encoder or decoder, by path.

A text of one token shows nothing, and gets the kinds of longer texts of the same model.
"""


def has_other_keys(capture: CapturedCall) -> bool:
    """Whether queries and keys come from different sequences: by the call, its names, or two inputs."""
    if capture.is_cross is not None:
        return capture.is_cross
    parts = capture.name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    tail = parts[numbers[-1] + 1 if numbers else 0 :][-3:]
    around = [call for call in capture.modules if is_within(capture.name, call.name)][-2:]
    if any(map(CROSS.search, tail)) or any("cross" in type(call.module).__name__.lower() for call in around):
        return True
    return bool(around) and around[-1].name == capture.name and _receives_two(around[-1], capture)


def self_kind(attention: Attention, call: Call | None, in_decoder: bool = False) -> tuple[Kind, bool]:
    """Encoder or decoder, for attention over one sequence, and whether this call shows it.

    Decoder if its layer also attends to another sequence, if no query sees later keys, or if the path says
    decoder. A single query, or a single unmasked key, shows nothing: then only the module's own declarations
    count. A module that calls itself causal and fills a cache is a decoder even if it sees a prefix in both
    directions.
    """
    if in_decoder or is_causal(attention) or DECODER.search(attention.site.name):
        return "decoder", True
    module = None if call is None else call.module
    causal = getattr(module, "is_causal", False) is True
    shows = len(attention.queries) > 1 and bool((attention.allowed(0, 1)[..., 1:]).any())
    if not shows and (causal or getattr(module, "is_decoder", False) is True):
        return "decoder", False
    return "decoder" if causal and call is not None and call.has_cache else "encoder", shows


def is_causal(attention: Attention) -> bool:
    """Whether, in a few rows, no query sees a later one's key, and later ones see more than the first.

    (Padding may mask later keys, but for all rows alike, and whole rows, which show nothing.)
    """
    count, offset = len(attention.queries), attention.offset
    if offset is None or count < 2:
        return False
    rows = sorted({round(step * (count - 1) / 7) for step in range(8)})
    allowed = [attention.allowed(row, row + 1) for row in rows]  # each [batch or 1, head or 1, 1, key]
    for row, keys in zip(rows, allowed, strict=True):
        if bool(keys[..., row + offset + 1 : offset + count].any()):
            return False
    first, *later = [keys for keys in allowed if bool(keys.any())] or allowed
    return any(bool((keys & ~first).any()) for keys in later)


def offset_of(attention: Attention, cached: bool) -> int | None:
    """The position of query 0 on the key axis of self-attention: the number of earlier keys.

    Equal lengths mean 0. Otherwise a causal mask tells: the row whose last unmasked key lies furthest right
    of its own number sees itself there (a static cache has empty keys after that). Under an open mask the
    queries are the last keys, if a cache holds the earlier ones. Several queries without a cache have no
    position among the keys: one of both was pooled. Keys behind those of the queries' own tokens, as
    compressed ones, leave every query its own key from 0 on.
    """
    queries, keys = len(attention.queries), len(attention.keys)
    if queries == keys:
        return 0
    allowed = attention.allowed(0, queries)  # [batch or 1, head or 1, query, key]
    position = torch.arange(keys, device=allowed.device)
    last = torch.where(allowed, position, -1).amax(-1).amax((0, 1))  # [query]
    lag = last - torch.arange(queries, device=last.device)
    if queries > 1 and not cached and bool((last == keys - 1).all()):
        return None
    furthest = int(lag[last >= 0].max()) if bool((last >= 0).any()) else keys
    offset = max(0, min(furthest, keys - queries))

    def see_themselves(offset: int) -> bool:
        own = allowed.diagonal(offset, -2, -1).flatten(0, 1).any(0)[:queries]
        return bool((own | (last < 0)).all())

    return 0 if offset and see_themselves(0) and not see_themselves(offset) else offset


def offset_behind_learned(sections: Sequence[Section], queries: int) -> int | None:
    """The learned keys before those of the queries; None unless there are some, and each query has a key."""
    own = sum(each.length for each in sections if not each.name)
    if own != queries or not any(each.keys_only for each in sections):
        return None
    return sections[0].length if sections[0].name else 0


def heads_of(module: object) -> int | None:
    """The number of heads that a module declares, under one of its usual names."""
    for name in ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads"):
        if isinstance(count := getattr(module, name, None), int):
            return count
    return None


def texts_in_batch(calls: Sequence[Call], queries: int) -> int:
    """Texts in the batch, from the inputs of the innermost modules; 0 if unknown."""
    for call in reversed(calls):
        for tensor in sorted(call.tensors, key=lambda tensor: tensor.ndim != 3):  # states are more reliable
            if tensor.ndim == 3:
                # the batch is second if only the first axis has the queries' length
                second = tensor.shape[0] == queries != tensor.shape[1]
                return int(tensor.shape[second])
            if tensor.ndim == 2 and tensor.is_floating_point():
                return 1
            if tensor.ndim >= 4:
                return int(tensor.shape[0])
    return 0


def _receives_two(call: Call, capture: CapturedCall) -> bool:
    """Whether a module received the states of two sequences, the second of which gives the keys."""
    if call.has_cache:
        return False
    if call.has_other_sequence:
        return True
    if capture.queries == capture.keys:
        return False
    lengths = [list(tensor.shape[:-1]) for tensor in call.tensors if tensor.is_floating_point()]
    for axes in lengths:
        if capture.batch in axes[:2] and len(axes) > 1:
            axes.remove(capture.batch)  # the others may be positions
    queries, keys = len(capture.queries), len(capture.keys)
    has_queries = any(queries in axes for axes in lengths)
    return has_queries and any(keys in axes and queries not in axes for axes in lengths)


@dataclass
class LayerCall:
    """One call of attention, as the next one of its layer sees it."""

    name: str
    rows: int
    module: type | None = None  # its class
    sequences: int = 0  # that it received
    is_cross: bool = False
    in_decoder: bool = False  # whether its layer is known to attend to another sequence

    def is_beside(self, other: LayerCall) -> bool:
        """Whether both have as many rows and one parent, or stand in the same entry of a list."""
        pairs = zip(self.name.split("."), other.name.split("."), strict=False)
        shared = takewhile(lambda pair: pair[0] == pair[1], pairs)
        parents = {each.name.rpartition(".")[0] for each in (self, other)}
        return self.rows == other.rows and (len(parents) == 1 or any(part.isdigit() for part, _ in shared))

    def has_fewer(self, other: LayerCall) -> bool:
        """Whether it was given fewer sequences than another module of the same class."""
        return self.module is not None and self.module is other.module and self.sequences < other.sequences


def sequences_of(call: Call) -> list[Sequence[int]]:
    """The shapes of the states that a module was given, if they have the axes of the first."""
    shapes = [tensor.shape for tensor in call.tensors if tensor.is_floating_point() and tensor.ndim > 1]
    return [shape for shape in shapes if len(shape) == len(shapes[0])]


def will_attend_across(model: nn.Module, name: str, rows: int, calls: Sequence[Call]) -> bool:
    """Whether a layer, which now attends to its own sequence, was given another one to attend to.

    A layer that is one module has sequences of two lengths then; else it has another module that attends.
    """
    own = next((call for call in calls if call.name == name), None)
    if name.rpartition(".")[2].isdigit() and own is not None:
        lengths = {shape[-2] for shape in sequences_of(own)}
        if len(lengths) > 1 and rows in lengths:
            return True
    layer = layer_around(name)
    around = [call for call in calls if is_within(layer, call.name) and call.name != name]
    sequences = sequences_of(around[-1]) if around else []
    if len(sequences) < 2 or rows not in sequences[0]:
        return False
    for part, module in model.get_submodule(layer).named_modules():
        path = f"{layer}.{part}".strip(".")
        beside = not is_within(path, name) and not is_within(name, path)
        alike = own is not None and type(module) is type(own.module)
        if beside and (alike or ATTENDING.search(type(module).__name__)):
            return True
    return False


def layer_around(name: str) -> str:
    """The path of the layer that a module is in: the innermost entry of a list around it, or its parent."""
    parts = name.split(".")[:-1]
    ends = [at for at, part in enumerate(parts, 1) if part.isdigit()]
    return ".".join(parts[: ends[-1]] if ends else parts)


def keys_lost(call: Call | None, keys: int) -> int:
    """How many keys before these a sliding cache of transformers has let go, as it counts them."""
    if call is None or not isinstance(number := getattr(call.module, "layer_idx", None), int):
        return 0
    caches = [getattr(call.kwargs.get(name), "layers", ()) for name in CACHES]
    layers = [each[number] for each in caches if 0 <= number < len(each)]
    sliding = [int(each.get_seq_length()) for each in layers if getattr(each, "is_sliding", False)]
    return max([0, *(seen - keys for seen in sliding)])


PAIRS_PER_READ = 1 << 24  # pairs of a mask that are read at a time


def find_padding(attention: Attention) -> Tensor | None:
    """Which rows are of padding: their keys are masked for all rows, while others see themselves.

    -> bool, [batch or 1, row]
    """
    read, offset, rows, keys = attention.read, attention.offset, len(attention.queries), len(attention.keys)
    causal_alone = isinstance(read, ScoredRows) and not (read.call.masks or read.call.biases)
    if offset is None or offset + rows > keys or causal_alone:
        return None
    blocks, step = list[tuple[Tensor, Tensor]](), max(1, PAIRS_PER_READ // (attention.batch * keys))
    for start in range(0, rows, step):
        opened = attention.allowed(start, min(start + step, rows)).any(1)  # [batch or 1, row, key]
        blocks.append((opened.any(1), opened.diagonal(offset + start, -2, -1)))
    unmasked = torch.stack([unmasked for unmasked, _ in blocks]).any(0)[:, offset : offset + rows]
    own = torch.cat([own for _, own in blocks], -1)
    return ~unmasked if bool((own == unmasked).all()) and not bool(unmasked.all()) else None


def close_rows(attention: Attention, padding: Tensor) -> Attention:
    """The same attention, in which rows of padding, [batch or 1, row], see nothing."""
    read, real = attention.read, ~padding[:, None, :, None]
    if isinstance(read, ScoredRows):
        read = replace(read, padding=padding)
    elif isinstance(read, HeldRows):
        read = replace(read, open_keys=read.allowed(0, len(attention.queries)) & real)
    else:
        read = RealRows(read, real)
    return replace(attention, read=read, statistics=None)  # those count all rows


@dataclass
class LayerNumbers:
    """Assigns layer numbers in one pass; the rule is in this file's docstring."""

    _starts: dict[tuple[Kind, str], int] = field(default_factory=dict)
    _ends: dict[Kind, int] = field(default_factory=dict)
    _numbers_in_use: set[tuple[Kind, int]] = field(default_factory=set)

    def number(self, kind: Kind, name: str, width: int) -> int:
        """The layer of one call of module ``name``, whose module list has ``width`` entries."""
        layer = end = self._ends.get(kind, 0)
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if len(numbers) == 1:
            start = self._starts.setdefault((kind, pattern(name)), end)
            layer = end = max(end, start + width)
            if (kind, start + numbers[0]) not in self._numbers_in_use:
                layer = start + numbers[0]
        self._ends[kind] = max(end, layer + 1)
        self._numbers_in_use.add((kind, layer))
        return layer


class Sites:
    """The sites of one recording; ``axes`` label the queries and keys of a kind if the lengths agree."""

    def __init__(self, model: nn.Module, axes: Mapping[Kind, tuple[Axis, Axis]]) -> None:
        self.model = model
        self.axes = axes
        # for calls of one query, which show nothing themselves
        self._kinds = _kinds_by_model.setdefault(model, {})
        self.begin_pass()

    def begin_pass(self) -> None:
        """Restart the counts of calls and layers."""
        self.padding: dict[tuple[Kind, int, int], Tensor] = {}  # by the batch and its length
        self._numbers = LayerNumbers()
        self._calls: Counter[str] = Counter()
        self._before: LayerCall | None = None
        self._decoders: set[str] = set()  # lists of layers of which one attends across

    def place(self, capture: CapturedCall) -> Attention:
        """The attention of a captured call, with its site and its labels; it holds no modules any more."""
        name, modules = capture.name, capture.modules
        site = Site(name, self._calls[name], "cross", 0)
        attention: Attention = replace(capture, site=site, offset=None, modules=(), origin=None)
        call = next((call for call in reversed(modules) if call.name == name), None)
        kind: Kind = "cross"
        cross, in_decoder = (False, False) if capture.kind else self._look_around(capture)
        if capture.kind is not None:
            kind, attention = capture.kind, replace(attention, offset=0)
        elif not cross:
            offset = capture.offset
            if offset is None and not capture.separate_axes:
                offset = offset_behind_learned(capture.sections, len(capture.queries))
            if offset is None and not capture.separate_axes:
                offset = offset_of(attention, any(call.has_cache for call in modules))
            attention = replace(attention, offset=offset)
            kind, shows = self_kind(attention, call, in_decoder)
            if shows:
                self._kinds[name] = kind
            kind = self._kinds.get(name, kind)
        # one list of layers, whatever mixes in each
        around = layer_around(name)
        path = around if capture.kind is not None and NUMBER.search(around) else name
        layer = self._numbers.number(kind, path, self._width(path))
        site = Site(name, self._calls[name], kind, layer)
        self._calls[name] += 1
        lost = 0 if attention.offset is None else keys_lost(call, len(attention.keys))
        start = lost + (attention.offset or 0)
        queries, keys = range(start, start + len(attention.queries)), range(lost, lost + len(attention.keys))
        return label_axes(replace(attention, site=site, queries=queries, keys=keys), self.axes)

    def sections_of(self, capture: CapturedCall) -> tuple[Section, ...]:
        """The parts of a call's keys; several of the input are told apart if no labels fit the whole."""
        size, lengths = len(capture.keys), labels_by_length(self.axes)
        module = next((call.module for call in reversed(capture.modules) if call.name == capture.name), None)
        if isinstance(module, nn.MultiheadAttention):
            added = ["bias"] * (module.bias_k is not None) + ["zero"] * module.add_zero_attn
            if added:
                return (Section(size - len(added)), *(Section(1, name, keys_only=True) for name in added))
        if capture.origin is None:
            return ()
        return capture.origin.sections(size, bool(lengths) and size not in lengths)

    def _look_around(self, capture: CapturedCall) -> tuple[bool, bool]:
        """Whether a call attends across, and if not, whether its layer does so before or behind it.

        Across is also what was given more sequences than the call before, of the same layer and class.
        """
        name, calls = capture.name, [call for call in capture.modules if is_within(capture.name, call.name)]
        now = LayerCall(name, len(capture.queries))
        if calls and calls[-1].name == name:
            now.module, now.sequences = type(calls[-1].module), len(sequences_of(calls[-1]))
        last, self._before = self._before, now
        before = last if last is not None and last.is_beside(now) else LayerCall("", 0)
        more = capture.is_cross is None and not before.is_cross and before.has_fewer(now)
        if more or has_other_keys(capture):
            now.is_cross = now.in_decoder = True
            return True, False
        now.in_decoder = before.in_decoder or will_attend_across(self.model, name, now.rows, calls)
        layers, _, number = layer_around(name).rpartition(".")
        if number.isdigit():  # some decoders attend across in every second layer
            now.in_decoder |= layers in self._decoders
            self._decoders |= {layers} if now.in_decoder else set()
        return False, now.in_decoder

    def close_padding(self, attention: Attention, record: Record) -> Attention:
        """The same, in which rows of padding see nothing; across two sequences, they are known before."""
        kind: Kind = "decoder" if attention.site.kind == "cross" else attention.site.kind
        place = kind, attention.batch, len(attention.queries)
        padding = self.padding.get(place) if attention.site.kind == "cross" else find_padding(attention)
        if padding is None:
            return attention
        self.padding[place] = padding
        count = int(padding.expand(attention.batch, -1).sum())
        record.note_padding(attention.site.kind, count, attention.batch * len(attention.queries))
        return close_rows(attention, padding)

    def _width(self, name: str) -> int:
        """The length of the module list that the last number in a path counts in."""
        parts = name.split(".")
        numbers = [index for index, part in enumerate(parts) if part.isdigit()]
        if not numbers:
            return 1
        owner = self.model.get_submodule(".".join(parts[: numbers[-1]]))
        return sum(1 for _ in owner.children())
