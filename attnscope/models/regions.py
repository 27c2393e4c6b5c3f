"""Which part of a picture or a sound each token stands for, found by experiment on processor and model."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from attnscope.attention import Attention, Kind, Section
from attnscope.axes import Array
from attnscope.capture import Record, recording
from attnscope.capture.rows.scores import Part, PlacedRows
from attnscope.errors import ModelError, first_line
from attnscope.models.inputs import PatchGrid

PADDING_SHARE = 0.5
"""A number that changes by less than this share of the maximum, from black to white, is padding."""


def find_coordinates(
    prepare: Callable[[Sequence[Array]], Tensor], shapes: Sequence[tuple[int, int]]
) -> list[Array] | None:
    """Where in its picture each prepared number is, in pixels; ``nan`` if in another one.  -> [x | y, ...]

    A processor prepares pictures that get brighter to the right, and downwards.

    However it scales, cuts and turns a picture, a number between its values for black and for white tells
    how far right, or down, it comes from; with several pictures, the numbers that change when one alone
    turns white belong to it. ``prepare`` gets each as [row, column, 3] in uint8, ``shapes`` are their
    rows and columns. ``None`` if pictures of one size are prepared in different sizes.
    """

    def prepared(greys: Sequence[Array]) -> Array:
        """The prepared pictures for shades of grey, given by row, by column, or for all."""
        sized = zip(greys, shapes, strict=True)
        pictures = [np.broadcast_to(grey[..., None], (*shape, 3)).astype(np.uint8) for grey, shape in sized]
        numbers: Array = prepare(pictures).double().cpu().numpy()
        return numbers

    dark, lit = np.zeros((1, 1)), np.full((1, 1), 255)
    black = prepared([dark] * len(shapes))
    right = prepared([np.rint((np.arange(columns) + 0.5) / columns * 255)[None] for _, columns in shapes])
    low = prepared([np.rint((np.arange(rows) + 0.5) / rows * 255)[:, None] for rows, _ in shapes])
    coordinates = []
    for one, (rows, columns) in enumerate(shapes):
        white = prepared([lit if other == one else dark for other in range(len(shapes))])
        if not black.shape == right.shape == low.shape == white.shape:
            return None
        with np.errstate(invalid="ignore", over="ignore"):  # a processor may divide by anything
            span = white - black
            inside = np.abs(span) > PADDING_SHARE * np.abs(span).max(initial=0)
            span = np.where(inside, span, np.nan)
            coordinates.append(np.stack([(right - black) / span * columns, (low - black) / span * rows]))
    return coordinates


COARSER = 1.15  # tokens with pixels this many times larger belong to a coarser version of the same picture
SAME_LINE = 0.25  # centres closer than this share of a token's width are in one row or column

LEAST_OWNED = 0.5
"""If less than this share of a picture's numbers ends in exactly one token, no token has a place in it."""

EDGE_SNAP = 0.1  # an edge this close to the picture's own, in token widths, is the picture's


class Region(NamedTuple):
    """The part of a picture that one token stands for.

    ``box`` is left, top, right and bottom, in pixels of the original picture. ``row`` and ``column``
    count within the tokens of the same ``level``: 0 is the finest, coarser ones show the whole.
    """

    level: int
    row: int
    column: int
    box: tuple[float, float, float, float]


class _Cell(NamedTuple):
    """Where the numbers of one token come from: their centre, their extent, and pixels per number."""

    token: int
    middle: tuple[float, float]
    size: tuple[float, float]
    scale: float


def find_regions(owners: Array, where: Array, rows: int, columns: int) -> dict[int, Region] | None:
    """The region of each token that owns numbers of a picture; tokens of padding have none.

    ``owners`` has the number of a token for each number of the prepared picture, or less than 0; ``where``
    they are, [x | y, number]. ``None`` if two tokens would have the same place, or if too little of the
    picture ends in exactly one token.
    """
    inside = np.isfinite(where).all(0)
    certain = inside & (owners >= 0)
    if inside.any() and certain.sum() / inside.sum() < LEAST_OWNED:
        return None
    levels: list[list[_Cell]] = []  # the tokens of each scale
    for cell in sorted(_cells(owners[certain], where[:, certain]), key=lambda cell: cell.scale):
        if not levels or cell.scale > COARSER * levels[-1][-1].scale:
            levels.append([])
        levels[-1].append(cell)
    parts = [part for level in levels for part in _part(level, (columns, rows))]
    # by the longer side: thumbnails may be squeezed
    parts.sort(key=lambda cells: np.median([max(cell.size) for cell in cells]))
    regions: dict[int, Region] = {}
    for level, part in enumerate(parts):
        placed = _place_cells(part, level, (columns, rows))
        if len({(region.row, region.column) for region in placed.values()}) < len(placed):
            return None
        regions |= placed
    return regions


def _cells(owners: Array, where: Array) -> list[_Cell]:
    tokens, which = np.unique(owners, return_inverse=True)
    counts = np.bincount(which)
    middles = np.array([np.bincount(which, values) / counts for values in where])
    off = (where - middles[:, which]) ** 2
    sizes = np.sqrt(12 * np.array([np.bincount(which, each) / counts for each in off]))  # if evenly spread
    scales = np.sqrt(np.maximum(sizes[0] * sizes[1], 1e-12) / counts)
    columns = (each.tolist() for each in (tokens, middles.T, sizes.T, scales))
    return [_Cell(token, tuple(m), tuple(s), scale) for token, m, s, scale in zip(*columns, strict=True)]


def _part(cells: Sequence[_Cell], picture: tuple[int, int]) -> list[list[_Cell]]:
    """Tokens of one scale by version of the same picture: each joins the first in which it overlaps none."""

    def is_full(cells: Sequence[_Cell]) -> bool:
        """Whether every cell of a grid of this size has exactly one token."""
        places = {(each.row, each.column) for each in _place_cells(cells, 0, picture).values()}
        rows, columns = ({place[side] for place in places} for side in (0, 1))
        return len(cells) == len(places) == len(rows) * len(columns)

    parts: list[list[_Cell]] = []
    for cell in () if is_full(cells) else sorted(cells):
        free = (part for part in parts if not any(_overlap(cell, other) for other in part))
        if (part := next(free, None)) is None:
            parts.append(part := [])
        part.append(cell)
    return parts if parts and all(map(is_full, parts)) else [list(cells)]


def _overlap(one: _Cell, other: _Cell) -> bool:
    """Whether two tokens overlap by more than their edges, in both directions."""
    return all(
        (size + wide) / 2 - abs(middle - centre) > SAME_LINE * min(size, wide)
        for middle, centre, size, wide in zip(one.middle, other.middle, one.size, other.size, strict=True)
    )


def _place_cells(cells: Sequence[_Cell], level: int, picture: tuple[int, int]) -> dict[int, Region]:
    """Rows, columns and boxes of the tokens of one level."""
    (columns, across), (rows, down) = (_edges(cells, axis, picture[axis]) for axis in (0, 1))
    return {
        cell.token: Region(level, row, column, (across[column], down[row], across[column + 1], down[row + 1]))
        for cell, row, column in zip(cells, rows, columns, strict=True)
    }


def _edges(cells: Sequence[_Cell], axis: int, end: int) -> tuple[list[int], list[float]]:
    """The number of each cell along one axis, and the edges that neighbours share."""
    middle = np.array([cell.middle[axis] for cell in cells])
    half = np.array([cell.size[axis] for cell in cells]) / 2
    width = 2 * float(np.median(half))
    order = np.argsort(middle)  # the picture's edge may cut off most of a token
    begins = np.diff(middle[order], prepend=-np.inf) > SAME_LINE * width
    numbers = np.empty(len(cells), int)
    numbers[order] = np.cumsum(begins) - 1
    count = int(numbers.max()) + 1
    sizes = np.bincount(numbers, minlength=count)
    starts, stops = (np.bincount(numbers, middle + sign * half) / sizes for sign in (-1, 1))
    edges = np.concatenate([starts[:1], (stops[:-1] + starts[1:]) / 2, stops[-1:]])
    for place, bound in ((0, 0.0), (-1, float(end))):
        if abs(edges[place] - bound) < EDGE_SNAP * width:
            edges[place] = bound
    return numbers.tolist(), edges.tolist()


DIGIT_BASE = 8  # the base of the digits that identify tokens: small enough for bfloat16
DIGIT_CHECKS = 4  # additional random digits per token: a mixture may give whole digits, but hardly these
DIGIT_TOLERANCE = 0.2  # how far a digit may be from a whole number

GRADIENT_NOISE = 40
"""Gradients below this many roundings of a typical one are ignored: their digits would be wrong."""

NONE, SEVERAL = -1, -2


class _EntryFound(Exception):
    """Raised when the language model is about to run: everything needed has been seen."""


def find_entry(module: nn.Module, inputs: Mapping[str, Any], name: str) -> InputEntry | None:
    """Run a model up to its language model, and take what enters it as a function of ``inputs[name]``.

    Attention outputs are held constant: then a token depends on its own pixels alone. ``None`` if nothing
    that enters the language model depends on them.
    """
    source = inputs[name].detach().clone().requires_grad_(True)
    entry = InputEntry(source, inputs.get("input_ids"))
    with torch.enable_grad(), ExitStack() as stack:
        record = stack.enter_context(recording(module, [], warn=False))
        stack.callback(module.get_input_embeddings().register_forward_hook(entry.after_embedding).remove)  # type: ignore[operator]
        for path, child in module.named_modules():
            if child is not module:
                handle = child.register_forward_pre_hook(entry.before_module, with_kwargs=True)
                stack.callback(handle.remove)
                stop = partial(_stop_gradient, path, record)
                stack.callback(child.register_forward_hook(stop).remove)
        try:
            module(**{**inputs, name: source})
        except _EntryFound:
            pass
        except Exception as error:  # a folder's model and processor may not fit together
            why = first_line(error)
            raise ModelError(f"the model does not read what its processor made: {why}") from error
    return entry if hasattr(entry, "states") else None


def find_dependents(module: nn.Module, inputs: Mapping[str, Any], pictures: Sequence[str]) -> set[int]:
    """The tokens that change with the numbers of ``inputs[pictures]``, including through attention."""
    other = {**inputs, **{name: 1 - inputs[name] for name in pictures}}
    before, after = (find_entry(module, each, pictures[0]) for each in (inputs, other))
    if before is None or after is None:
        return set()
    return set((before.states != after.states).any(-1).nonzero().flatten().tolist())


@dataclass
class InputEntry:
    """What enters a language model as a function of ``given``, and on which axis.

    It waits for the module that receives the embedded text, with the picture in it or beside it.
    """

    given: Tensor
    ids: Tensor | None
    kind: Kind = "decoder"
    embedded: Tensor | None = None
    states: Tensor = field(init=False)  # [token, feature]

    def after_embedding(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Remember the embedded text, to recognise it later."""
        self.embedded = output.detach().requires_grad_(True)
        return self.embedded.clone()  # the model may write into it

    def before_module(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Take what depends on the picture when a module reads the text."""
        text, layer = kwargs.get("inputs_embeds"), False
        if text is None and not self._is_text(kwargs.get("input_ids")):
            text, layer = args[0] if args else None, True
        if layer if text is None else not _depends_on(text, self.embedded):
            return  # it does not read the text
        inside = _depends_on(text, self.given)  # the picture is already in the text
        beside = self._pictures_beside(text, [*args[1:], *kwargs.values()], layer)
        if inside or beside:
            self.kind = "decoder" if inside else "cross"
            states: Any = text if inside else beside[0]
            self.states = states.flatten(0, -2)
        elif layer or text is None:
            return
        raise _EntryFound

    def _is_text(self, ids: Any) -> bool:
        """Whether these are the ids of the text: modules in between may read some of their own."""
        return isinstance(ids, Tensor) and self.ids is not None and torch.equal(ids, self.ids)

    def _pictures_beside(self, text: Any, values: Sequence[Any], layer: bool) -> list[Any]:
        """What a module is given beside the text that depends on the picture, and was not read before it."""
        if layer:  # a cross-attending layer gets both
            values = [
                each for each in values if _may_be_states(each) and not _depends_on(each, self.embedded)
            ]
        dependent = [each for each in values if each is not text and _depends_on(each, self.given)]
        return [each for each in dependent if not torch.equal(each, self.given)]

    def token_owners(self) -> Tensor:
        """The number of the token that each number of ``given`` ends in; ``NONE``, or ``SEVERAL``.

        It is read off digit by digit: each digit scales its token's gradient, and a pixel's gradient,
        divided by its unscaled gradient, is the digit.
        """
        states, pixels = self.states, self.given
        numbers = torch.arange(len(states), device=states.device)
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(states.shape[-1], generator=generator).to(states)

        def gradient(weights: Tensor) -> Tensor:
            scaled = weights.to(states)[:, None] * direction  # [token, feature]
            return torch.autograd.grad(states, pixels, scaled, retain_graph=True, materialize_grads=True)[0]

        plain = gradient(torch.ones(len(states)))
        usual = plain.float().square().mean().sqrt()
        ends = plain.abs() > GRADIENT_NOISE * torch.finfo(plain.dtype).eps * usual
        tokens, several = torch.zeros_like(pixels, dtype=torch.long), torch.zeros_like(ends)
        place = 1
        while place < len(states):
            digit = gradient((numbers // place) % DIGIT_BASE) / plain
            tokens += digit.nan_to_num().round().long() * place
            several |= (digit - digit.round()).abs() > DIGIT_TOLERANCE
            place *= DIGIT_BASE
        certain = ends & ~several & (tokens >= 0) & (tokens < len(states))
        checks = torch.randint(DIGIT_BASE, (DIGIT_CHECKS, len(states)), generator=generator)
        for check in checks.to(states.device):
            expected = check[tokens.clamp(0, len(states) - 1)]
            certain &= (gradient(check) / plain - expected).abs() <= DIGIT_TOLERANCE
        return tokens.masked_fill(~certain, SEVERAL).masked_fill(~ends, NONE)


def _depends_on(states: Any, source: Tensor | None) -> bool:
    """Whether something that may be states depends on the given input."""
    if source is None or not _may_be_states(states):
        return False
    (gradient,) = torch.autograd.grad(states.sum(), source, retain_graph=True, allow_unused=True)
    return gradient is not None


def _may_be_states(value: Any) -> bool:
    """Whether a value may be states, one per token."""
    return isinstance(value, Tensor) and value.requires_grad and value.ndim >= 3


def _stop_gradient(path: str, record: Record, module: nn.Module, args: Any, output: Any) -> Any:
    """Stop the gradient after a module that contains attention."""
    return tree_map_only(Tensor, Tensor.detach, output) if path in record.calls else None


MIDDLES = 12  # at least this many gradients are taken: with few tokens, several in different directions


def find_middles(
    module: nn.Module, inputs: Mapping[str, Any], name: str, tokens: Sequence[int], axis: int
) -> Array | None:
    """The centre of the steps, along ``axis`` of ``inputs[name]``, that change each of ``tokens``.

    Attention outputs are held constant. ``None`` if the input enters the language model outside its text,
    or not at all.  -> [token]
    """
    entered = find_entry(module, inputs, name)
    if entered is None or entered.kind == "cross" or len(entered.states) != inputs["input_ids"].shape[1]:
        return None
    generator = torch.Generator().manual_seed(0)
    times = -(-MIDDLES // len(tokens))
    directions = torch.randn(times, entered.states.shape[-1], generator=generator).to(entered.states)
    at = torch.arange(entered.given.shape[axis]) + 0.5
    middles = []
    for token in tokens:
        energy = torch.zeros(len(at), dtype=torch.float64)  # [step]
        for direction in directions:
            projection = entered.states[token] @ direction
            (gradient,) = torch.autograd.grad(projection, entered.given, retain_graph=True)
            energy += gradient.double().square().movedim(axis, 0).flatten(1).sum(1).cpu()
        middles.append(float((energy * at).sum() / energy.sum()))  # nan for a token without sound
    return np.array(middles)


SPOTS = ((0.1, 0.4), (0.35, 0.85), (0.6, 0.12), (0.88, 0.62), (0.8, 0.9))
"""Where a picture is changed to find what stands there: shares of its height and width."""

MOST_PLACED = 4096  # positions of an axis that are asked where they lie
SKETCH = 16  # random numbers that a row of weights is multiplied with, to compare it with another pass's
LEAST_UNPLACED = (
    4  # positions of an axis that should lie on the picture; fewer are of pooled or special states
)
LEAST_AGREEMENT = 0.8
"""The least correlation, down and across, between where an axis changes and where the picture was changed."""


class Sketches:
    """An observer: for the first axis of each length, what stands at its positions, in few numbers."""

    def __init__(self) -> None:
        self.found: dict[int, Tensor] = {}  # [picture, position, number] by length
        self.parts: dict[int, Sequence[Section]] = {}  # of axes that patches and learned positions share

    def observe(self, attention: Attention) -> None:
        """Sketch what one call received, or the mean weights where that is not known."""
        sizes = len(attention.queries), len(attention.keys)
        if any(part.grid for part in attention.sections):
            self.parts[sizes[1]] = attention.sections
        if max(sizes) > MOST_PLACED or {*sizes} <= self.found.keys():
            return
        for size, side in zip(sizes, _sides(attention), strict=True):
            numbers = torch.randn(side.shape[-1], SKETCH, generator=torch.Generator().manual_seed(0))
            sketch = side @ numbers.to(side)
            if size in self.found and sizes[0] == sizes[1]:  # queries and keys of one sequence
                sketch = self.found[size] + sketch
            self.found[size] = sketch


def _sides(attention: Attention) -> tuple[Tensor, Tensor]:
    """Numbers of each query and of each key: vectors of one position alone where the call is known.

    A row of weights also changes with every key, which hides where the picture changed.
    -> [picture, query, number], [picture, key, number]
    """
    read, batch = attention.read, torch.arange(attention.batch)[:, None, None]
    row, key = (torch.arange(len(axis))[None, None] for axis in (attention.queries, attention.keys))
    parts = (
        read.parts if isinstance(read, PlacedRows) else (Part(read, batch, batch, row, key[..., None, :]),)
    )
    sums: Sequence[Tensor] = ()
    for part in parts:
        call = getattr(part.read, "call", None)
        call = call() if callable(call) else call
        ends = (part.row, len(attention.queries)), (part.key[:, :, 0], len(attention.keys))
        found = [] if call is None else [(call.query, *ends[0]), (call.key, *ends[1])]
        fit = all(side.shape[::2] == (len(part.text), at.shape[-1]) for side, at, _ in found)
        if not found or not fit or part.key.shape[2] > 1:
            weights = attention.weights().float().mean(1)  # [picture, query, key]
            return weights, weights.mT
        sums = sums or [x.new_zeros(len(batch), 1 + count, x.shape[-1]).float() for x, _, count in found]
        for total, (side, at, _) in zip(sums, found, strict=True):
            heads = side.float().repeat_interleave(max(1, at.shape[1] // side.shape[1]), 1)
            total.index_put_((part.text[:, :, :1], at.expand(heads.shape[:3])), heads, accumulate=True)
    queries, keys = (total[:, :-1] for total in sums)  # the last is of padding, at -1
    return queries, keys


def find_grids(
    run: Callable[[Tensor, Sketches], object], pixels: Tensor, own_lengths: Container[int]
) -> tuple[dict[int, PatchGrid | None], list[int]]:
    """The grids of all axes, found by experiment, by length, as they first ran; ``None`` for a known one.

    ``run`` gives the model ``pixels``, [1, channel, row, column], and then in one batch copies of which each
    has one part changed. An axis lies on the picture if what changes on it moves with that part. Also the
    lengths of axes that do not, or in another order than row by row.
    """
    run(pixels, before := Sketches())
    grids: dict[int, PatchGrid | None] = {length: None for length in before.found if length in own_lengths}
    parts = [part for length in before.parts.keys() - grids.keys() for part in before.parts[length]]
    patches = {part.length: PatchGrid(*part.grid, 0) for part in parts if part.grid}
    known = grids.keys() | patches.keys() | before.parts.keys()
    if before.found.keys() <= known:
        return grids | patches, []
    unplaced = []
    high, wide = pixels.shape[-2:]
    changed, half = pixels.repeat(len(SPOTS), 1, 1, 1), (max(1, high // 28), max(1, wide // 28))
    for copy, (down, across) in zip(changed, SPOTS, strict=True):
        row, column = int(down * high), int(across * wide)
        rows, columns = (slice(max(0, at - by), at + by) for at, by in zip((row, column), half, strict=True))
        copy[:, rows, columns] += 3.0
    run(changed, after := Sketches())
    for length, sketch in before.found.items():
        moved = after.found.get(length)
        if length in known or moved is None or (len(sketch), len(moved)) != (1, len(SPOTS)):
            continue  # windows, whose positions lie elsewhere in each
        changes = moved - sketch  # [spot, position, number]
        changes = (changes - changes.mean(1, keepdim=True)).square().sum(-1)  # all rows see the changed keys
        best = max((*_agreement(changes[:, special:], high / wide), special) for special in (0, 1))
        if best[0] > LEAST_AGREEMENT:
            grids[length] = PatchGrid(best[1], length // best[1], best[2])
        elif length >= LEAST_UNPLACED:
            unplaced.append(length)
    return grids | patches, unplaced


def _agreement(changes: Tensor, shape: float) -> tuple[float, int]:
    """How well changes [spot, position] agree with ``SPOTS`` on a grid near the picture's shape; its rows."""
    count = changes.shape[1]
    able = [rows for rows in range(2, count // 2 + 1) if count % rows == 0]
    if not able:
        return 0.0, 1
    rows = min(able, key=lambda rows: abs(math.log(rows * rows / (count * shape))))
    shares = changes.double().view(len(changes), rows, -1)
    shares /= shares.sum((1, 2), keepdim=True)
    ends = [
        (side @ torch.arange(side.shape[1]).to(side)).cpu().numpy() for side in (shares.sum(2), shares.sum(1))
    ]
    spots = np.array(SPOTS).T
    with np.errstate(invalid="ignore"):
        return float(
            np.nan_to_num([np.corrcoef(*pair)[0, 1] for pair in zip(ends, spots, strict=True)]).min()
        ), rows
