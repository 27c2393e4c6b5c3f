"""One model type: captured maps under the default attention against every oracle there is.

The oracles are the model's own attentions, and torch's own kernels.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.capture.observing import CapturedMap
from tests.tools.coverage.live import CLOSE, is_flat, run
from tests.tools.coverage.pictures import count_axes
from tests.tools.coverage.recipes import RECIPES, Recipe, make
from tests.tools.coverage.shrink import build, noise
from tests.tools.survey import describe_error, first_line


@dataclass
class Result:
    """Counts of one type.

    ``own`` counts the tensors that its eager output files under attentions: ``equal`` to a captured map, or
    holding one in another layout, whose name it is; ``scores`` that become one by a softmax; ``wrong``, no
    attention weights; weights of a few ``sampled`` points; or ``unlike`` any map.
    Of ``maps``: ``unit`` equal what torch's kernel did with unit values in another pass, ``twin`` what was
    captured from the eager model, ``unvouched`` names those for which no independent oracle exists.
    ``flat`` are those whose rows are all even: no comparison of them fails.
    ``axes`` counts the maps of a picture by the names of their axes, ``refusal`` is why there are none.
    """

    name: str
    model: str = ""
    built: bool = False
    identical: bool | None = None
    maps: int = 0
    flat: int | None = None  # not counted in rows of earlier versions
    own: Counter[str] = field(default_factory=Counter)
    kernels: list[str] = field(default_factory=list)
    unit: int = 0
    twin: int = 0
    unvouched: list[str] = field(default_factory=list)
    unlikely: list[str] = field(default_factory=list)  # sites whose module does not say attention
    axes: dict[str, int] = field(default_factory=dict)
    refusal: str = ""
    note: str = ""

    @property
    def layouts(self) -> list[str]:
        return sorted(self.own.keys() - {"equal", "scores", "wrong", "sampled", "unlike"})

    @property
    def laid(self) -> int:
        """Own tensors that hold a captured map in another layout."""
        return sum(self.own[layout] for layout in self.layouts)

    @property
    def scores(self) -> int:
        return self.own["scores"]

    @property
    def speaking(self) -> int:
        """Own tensors that are attention over keys."""
        return self.own["equal"] + self.laid + self.own["unlike"]

    @property
    def exact(self) -> bool:
        """Whether every own tensor that is attention over keys equals a captured map as it is."""
        return self.own["equal"] == self.speaking > 0

    @property
    def exact_laid_out(self) -> bool:
        """Whether every own tensor equals a captured map, some of them in another layout."""
        return self.laid > 0 and not self.own["unlike"]


def attempt(model_type: str) -> Result:
    """Build one type as small as it goes, run it, and compare it with the same model in eager."""
    failures: list[str] = []
    model, config, given = make(model_type, failures)
    if model is None:
        return Result(model_type, note=failures[0])
    result, recipe = Result(model_type, type(model).__name__, built=True), RECIPES.get(model_type, Recipe())
    if given is None:
        result.note = failures[0] if failures else "no inputs are known for it"
        return result
    try:
        eager = build(type(model), config, recipe.gain, recipe.eager)
    except Exception as error:
        eager, result.note = None, f"no eager attention: {first_line(error)}"
    try:
        compare(result, model, eager, given)
    except Exception as error:  # what fails in it is no result
        note = f"the comparison failed: {describe_error(error)}"
        result = Result(model_type, result.model, built=True, note=note)
    result.axes, result.refusal = count_axes(model, given)
    return result


def compare(result: Result, model: Any, eager: Any, given: dict[str, Any]) -> None:
    """Fill a result with what capture, torch's kernels and the eager model say."""
    torch.manual_seed(3)
    with torch.inference_mode():
        plain = model(**given)
    output, record, maps = run(model, given)
    result.identical = same(plain, output)
    result.maps, result.flat = len(maps), sum(map(is_flat, maps))
    result.kernels = sorted({site.kernel for site in record.sites})
    names = [site.site.name for site in record.sites]
    said = [f"{name} ({type(model.get_submodule(name)).__name__})" for name in names]
    result.unlikely = [each for each in said if "att" not in each.rpartition(".")[2].lower()]
    sources = [site.source for site in record.sites]
    units = Units(unit_weights, each=math.inf)
    torch.manual_seed(3)
    with torch.inference_mode(), units:
        model(**given)
    vouched = by_kernels(result, maps, sources, units.kernels)
    if eager is not None:
        vouched |= by_itself(result, model, eager, given, maps)
    vouched |= {number for number, source in enumerate(sources) if source == "kernel"}  # which it returned
    result.unvouched = [each for number, each in enumerate(said) if number not in vouched]


def by_kernels(result: Result, maps: list[CapturedMap], sources: list[str], units: list[Tensor]) -> set[int]:
    ours = [number for number, source in enumerate(sources) if source == "recomputed"]
    pairs = zip(ours, units, strict=True) if len(units) == len(ours) else ()
    found = {
        number
        for number, unit in pairs
        if is_same(unit, maps[number].weights)
        or any(same(unit, maps[number].weights, CLOSE) for same in (same_rows, same_tokens_reordered))
    }
    result.unit = len(found)
    return found


def is_same(unit: Tensor, weights: Tensor) -> bool:
    """Whether a tensor of the oracle is a map, its texts and heads in one axis or two, its keys anywhere."""
    return any(
        each.numel() == weights.numel()
        and each.shape[-2:] == weights.shape[-2:]
        and float((each.reshape(weights.shape) - weights).abs().max()) <= CLOSE
        for each in (unit, unit.mT)
    )


def by_itself(
    result: Result, model: Any, eager: Any, given: dict[str, Any], maps: list[CapturedMap]
) -> set[int]:
    """The maps that equal the eager model's own attentions, or what another kernel weighed with in it."""
    eager.load_state_dict(model.state_dict())
    try:
        output, record, twins = run(eager, given, output_attentions=True)
    except Exception as error:
        if not isinstance(error, TypeError):  # one that takes no such word
            result.note = f"asked for its attentions it fails: {type(error).__name__}: {error}"[:160]
        output, record, twins = run(eager, given)
    vouched = set()
    for own in attentions(output):
        what, found = classify(own, model.config, maps, vouched)
        result.own[what] += 1
        vouched |= set() if found is None else {found}
    by_name = {(kept.site.name, kept.site.call): number for number, kept in enumerate(twins)}
    for number, kept in enumerate(maps):
        twin = by_name.get((kept.site.name, kept.site.call))
        if twin is not None and difference(kept, twins[twin].weights) <= CLOSE:
            result.twin += 1
            vouched |= {number} if record.sites[twin].source == "kernel" else set()
    return vouched


def classify(own: Tensor, config: Any, maps: list[CapturedMap], taken: set[int]) -> tuple[str, int | None]:
    """What a tensor of the model's own attentions is, and the map in it; some models list one map twice."""
    if not are_weights(own):
        found = from_scores(own, maps)
        return "wrong" if found is None else "scores", found
    if are_sampled(own, config):
        return "sampled", None
    free = [number for number in range(len(maps)) if number not in taken]
    for several in (free, range(len(maps))):
        gaps = {number: difference(maps[number], own) for number in several}
        best = min(gaps, key=lambda number: gaps[number], default=None)
        if best is not None and gaps[best] <= CLOSE:
            return "equal", best
    for number, kept in enumerate(maps):
        alive = kept.allowed.any(-1, keepdim=True).expand_as(kept.weights)  # rows that see anything
        cut = own[:, :, : kept.weights.shape[2]] if own.ndim == 4 else own  # behind it is padding
        pairs = zip(layouts(kept.weights, cut.shape), layouts(alive.float(), cut.shape), strict=True)
        for (name, laid), (_, rows) in pairs:
            seeing = rows.any(-1, keepdim=True)
            if laid.shape == cut.shape and float(((laid - cut) * seeing).abs().max()) <= CLOSE:
                return name, number
    for number in free:
        if same_rows(own, maps[number].weights, CLOSE):
            return "the windows, blocks or chosen queries by themselves", number
        if same_tokens_reordered(own, maps[number].weights, CLOSE):
            return "the patches in another order", number
    for number in free:
        if same_rows_reordered(own, maps[number].weights, CLOSE):
            return "the rows in the order in which they were chosen", number
    return "unlike", None


def from_scores(own: Tensor, maps: list[CapturedMap]) -> int | None:
    """The map that an own tensor becomes by a softmax: the model returned its scores."""
    if not own.is_floating_point() or own.ndim < 3:
        return None
    weights = torch.softmax(own, -1)
    return next((number for number, kept in enumerate(maps) if difference(kept, weights) <= CLOSE), None)


def attentions(output: Any, inside: bool = False) -> Iterator[Tensor]:
    """The tensors that an output files under a name that says attention, or all."""
    if isinstance(output, dict):
        for name, part in output.items():
            yield from attentions(part, inside or "attentions" in str(name))
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from attentions(part, inside)
    elif isinstance(output, Tensor) and inside:
        yield output


def are_weights(own: Tensor) -> bool:
    """Whether a tensor is shaped like attention: 3 axes, not negative, rows of at most 1."""
    if own.ndim < 3 or not own.is_floating_point() or own.numel() == 0:
        return False
    rows = own.float().sum(-1)
    return bool((own >= 0).all()) and float(rows.max()) <= 1.001 and float(rows.max()) > 0.01


def are_sampled(own: Tensor, config: Any) -> bool:
    """Whether weights are of deformable attention: [batch, query, head, level, point], or flat behind."""
    levels = getattr(config, "num_feature_levels", None) or getattr(config, "encoder_in_channels", None)
    count = levels if isinstance(levels, int) else len(levels or ())
    points = {
        value for name, value in vars(config).items() if name.endswith("n_points") and isinstance(value, int)
    }
    per_level = own.ndim == 5 and own.shape[-2] == count and own.shape[-1] in points
    flat = own.ndim == 4 and own.shape[-1] in {count * several for several in points}
    return per_level or flat


def difference(kept: CapturedMap, own: Tensor) -> float:
    """The largest difference, over queries that may see anything; infinite where shapes differ."""
    ours, alive = kept.weights, kept.allowed.any(-1, keepdim=True)
    queries, keys = own.shape[-2:]
    if own.ndim == 4 and own.shape[:2] == ours.shape[:2] and queries < ours.shape[2] and keys < ours.shape[3]:
        ours, alive = ours[:, :, -queries:, -keys:], alive[..., -queries:, :]  # without a learned prefix
    elif own.shape != ours.shape:
        if own.numel() != ours.numel() or own.shape[-2:] != ours.shape[-2:]:
            return float("inf")
        own = own.reshape(ours.shape)
    if not bool(alive.any()):
        return float("inf")
    return float(((ours - own) * alive).abs().max())


def unit_weights(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
    """The weights of one call, as torch's kernel has them: its output on unit values."""
    unit = torch.eye(key.shape[-2], dtype=value.dtype).expand(*key.shape[:-1], key.shape[-2])
    return F.scaled_dot_product_attention(query, key, unit, *args, **options)


class Units(TorchFunctionMode):
    """What torch's kernels weighed with, as ``weigh`` or they themselves say, and the results of softmaxes.

    ``kernels`` are those of ``scaled_dot_product_attention`` and ``multi_head_attention_forward``, laid out
    as their queries; ``softmaxes`` whatever a softmax returned, attention or not. Of each shape, ``each``.
    """

    def __init__(self, weigh: Callable[..., Tensor], each: float) -> None:
        super().__init__()
        self.weigh, self.each = weigh, each
        self.kernels: list[Tensor] = []
        self.softmaxes: list[Tensor] = []
        self.owners: set[str] = set()  # the paths of the modules that called kernels
        self._names: list[str] = []
        self._counts: Counter[Any] = Counter()

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Keep what runs in a model while the block runs."""
        with ExitStack() as stack:
            for path, module in model.named_modules():
                enter = module.register_forward_pre_hook(lambda *_, path=path: self._names.append(path))
                leave = module.register_forward_hook(lambda *_: self._names.pop() and None, always_call=True)
                stack.callback(enter.remove)
                stack.callback(leave.remove)
            stack.enter_context(self)
            yield

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and keep what it weighed with."""
        kwargs = kwargs or {}
        result, name = func(*args, **kwargs), getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            keys = (args[1] if len(args) > 1 else kwargs["key"]).shape
            self._keep(self.kernels, lambda: self.weigh(*args, **kwargs), (result.shape, keys))
        elif name == "multi_head_attention_forward":
            asked = kwargs | {"need_weights": True, "average_attn_weights": False}
            self._keep(self.kernels, lambda: func(*args, **asked)[1], (result[0].shape, args[1].shape))
        elif name in ("softmax", "_softmax") and isinstance(result, Tensor) and result.ndim >= 3:
            self._keep(self.softmaxes, lambda: result.detach().clone(), result.shape)
        return result

    def _keep(self, kept: list[Tensor], make: Callable[[], Tensor], shape: object) -> None:
        self.owners |= {*self._names[-1:]} if kept is self.kernels else set()
        self._counts[shape] += 1
        if self._counts[shape] <= self.each:
            kept.append(make())


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(attentions(one, True), attentions(other, True), strict=True))
    return all(a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def layouts(weights: Tensor, shape: torch.Size) -> Iterator[tuple[str, Tensor]]:
    """A map as a model's own report may lay it out: names, and tensors of ``shape`` made of the map alone.

    A report that equals one holds the captured weights, though not as they are, [batch, head, query, key].
    """
    batch, heads, queries, keys = weights.shape
    if len(shape) == 3 and shape == (batch, queries, keys):
        yield "the mean over the heads", weights.mean(1)
    if len(shape) == 4 and shape == weights.shape and heads > 1:
        yield "the mean over the heads", weights.mean(1, keepdim=True).expand(shape)
    if len(shape) == 4 and shape[:3] == weights.shape[:3] and shape[3] < keys:
        yield "the keys of one of two sequences", weights[..., : shape[3]]
        yield "the keys of one of two sequences", weights[..., -shape[3] :]
    if len(shape) == 4 and shape[:2] == weights.shape[:2] and shape[2] <= queries == keys:
        if shape[3] == 1:
            yield "the rows of the global token", weights[:, :, :1, : shape[2]].mT
        if shape[3] > 1 and shape[3] % 2 == 0:
            yield "windows, the global token in front", _windows(weights, shape[3] - 2)[:, :, : shape[2]]


def _windows(weights: Tensor, reach: int) -> Tensor:
    """Token 0, which is global, and then the keys ``reach / 2`` to either side of a query, without token 0.

    -> [batch, head, query, reach + 2]; nothing for its own row
    """
    wide = F.pad(weights, (reach // 2, reach // 2))
    wide[..., reach // 2] = 0
    band = [wide[:, :, i, i : i + reach + 1] for i in range(weights.shape[2])]
    laid = torch.cat([weights[..., :1], torch.stack(band, 2)], -1)
    laid[:, :, 0] = 0
    return laid


def same_rows(own: Tensor, ours: Tensor, close: float) -> bool:
    """Whether every row of a map is one of a report, head by head, wherever they stand and their keys do.

    ``own`` is [..., query, key] with the heads somewhere before or in one axis with others, ``ours`` [batch,
    head, query, key]. Rows of zeros are of no query; the report may have rows of padding besides.
    """
    size, heads = own.shape[-1], ours.shape[1]
    if own.shape[-2:] == ours.shape[-2:]:
        return False  # no other layout
    ours = F.pad(ours, (0, max(0, size - ours.shape[-1])))
    axes = [axis for axis in range(own.ndim - 2) if own.shape[axis] == heads]
    ways = [list(zip(own.movedim(axis, 0), ours.transpose(0, 1), strict=True)) for axis in axes]
    return any(
        all(_are_among(mine, theirs, size, close) for theirs, mine in way)
        for way in (ways or [[(own, ours)]])
    )


def same_rows_reordered(own: Tensor, ours: Tensor, close: float) -> bool:
    """Whether the rows of each head are those of a map in another order, [batch, head, query, key]."""
    if own.shape != ours.shape or own.ndim != 4:
        return False
    gaps = (own[:, :, :, None].double() - ours[:, :, None].double()).abs().amax(-1)  # [batch, head, row, row]
    nearest = gaps.argmin(-1)
    return float(gaps.amin(-1).max()) <= close and all(
        len(set(head.tolist())) == len(head) for head in nearest.flatten(0, 1)
    )


def same_tokens_reordered(own: Tensor, ours: Tensor, close: float) -> bool:
    """Whether a report is a map with its queries and its keys in another order, the same in all heads."""
    if own.shape[-2:] != ours.shape[-2:] or own.numel() != ours.numel():
        return False

    def order(rows: Tensor) -> Tensor:
        along = noise(*rows.shape[:2], 1, rows.shape[-1]).double()
        return (rows.double().sort(-1).values * along).sum((0, 1, 3)).argsort()

    sorted_maps = [each[:, :, order(each)][..., order(each.mT)] for each in (own.reshape(ours.shape), ours)]
    return float((sorted_maps[0] - sorted_maps[1]).abs().max()) <= close


def _are_among(mine: Tensor, theirs: Tensor, size: int, close: float) -> bool:
    """Whether every row of one tensor is among those of another, but for the order of its numbers."""
    one, other = (_rows(rows, size) for rows in (mine, theirs))
    if not 0 < len(one) <= len(other):
        return False
    along = torch.cos(torch.arange(size, dtype=torch.float64) + 1)
    other = other[(other.double() @ along).argsort()]
    near = torch.searchsorted(other.double() @ along, one.double() @ along)
    steps = (near[:, None] + torch.arange(-8, 9)).clamp(0, len(other) - 1)  # [row, neighbour]
    gaps = [(other[steps[:, step]] - one).abs().amax(-1) for step in range(steps.shape[1])]
    return float(torch.stack(gaps).amin(0).max()) <= close


def _rows(weights: Tensor, size: int) -> Tensor:
    """The rows that are not zero, their largest numbers in order.  -> [row, size]"""
    rows = weights.reshape(-1, weights.shape[-1]).sort(-1, descending=True).values[:, :size]
    return rows[rows.sum(-1) > 0]
