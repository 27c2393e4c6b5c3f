"""One model of a library: every kind of captured map against the oracle; the other layers by name."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from attnscope.attention import Attention
from attnscope.capture import Record, SiteRecord, recording
from tests.capture.observing import CapturedMap, MapObserver
from tests.tools.coverage.compare import CLOSE, Units, is_same, same, same_rows, unit_weights
from tests.tools.survey import Row

ORDERED_OTHERWISE = frozenset({"timm hiera_tiny_224", "timm nest_tiny"})
"""Models whose blocks have tokens in a fixed order, where the maps have them as the picture does.

By hand: of Hiera's first block, a change of a patch moves just those rows, put in the block's order. Behind
its poolings, NesT's maps are open in squares of the picture, as its blocks are.
"""
GAIN = 1.5  # of the size of what goes into a linear layer, in what comes out of it
TEXTS = 2  # texts, or pictures, that each model is given
EACH = 2  # maps of one shape that are compared: layers are alike
TRIED = 3  # tokens that are changed
SEEN = 1e-3  # the weight from which a change must be seen
VERDICTS = {
    "exact": "exact",
    "laid": "placed",
    "unplaced": "rows exact, places unconfirmed",
    "proved": "proved by weights @ values alone",
    "parts": "parts, said to be parts",
}
"""What a map may be, and its name in the table; anything else is wrong."""


class Some(MapObserver):
    """Keeps the whole maps of a few layers of each kind, and which of all layers these are."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self._counts: Counter[Any] = Counter()

    def observe(self, attention: Attention) -> None:
        """Keep all heads of one layer, unless enough of its kind are kept."""
        kind = attention.batch, attention.heads, len(attention.queries), len(attention.keys), attention.kernel
        self._counts[kind] += 1
        if self._counts[kind] <= EACH:
            self.numbers.append(self._counts.total() - 1)
            super().observe(attention)


def check(name: str, model: nn.Module, arguments: Sequence[Any], inputs: dict[str, Any]) -> Row:
    """Run a model plainly, observed, and under the oracle, and compare.

    The row counts maps by verdict. ``named``: layers without a map, with the reason. ``wrong``: maps that are
    none of ``VERDICTS``. ``missed``: modules that called a kernel and have neither a map nor a name.
    """
    some, units = Some(), Units(plain_weights, EACH)
    sharpen(model)
    with torch.inference_mode():
        torch.manual_seed(3)
        plain = model(*arguments, **inputs)
        torch.manual_seed(3)
        with recording(model, [some], warn=False) as record:
            output = model(*arguments, **inputs)
        torch.manual_seed(3)
        with units.watch(model):
            model(*arguments, **inputs)
    parts = any("a map is of one part" in note for note in record.notes)
    verdicts, wrong = Counter[str](), list[str]()
    for number, kept in zip(some.numbers, some.maps, strict=True):
        site = record.sites[number]
        verdict = judge(kept, site, units, parts)
        if verdict == "laid":
            square = site.queries == site.keys
            placed = is_placed(model, arguments, inputs, kept) if square else None
            untold = placed is None or name in ORDERED_OTHERWISE
            verdict = "laid" if placed else "unplaced" if untold else "misplaced"
        verdicts[verdict] += 1
        if verdict not in VERDICTS:
            shape = f"{site.batch} × {site.heads} × {site.queries} × {site.keys}"
            wrong.append(f"{site.site.name} ({site.kernel}, {shape}, offset {site.offset}): {verdict}")
    return {
        "identical": same(plain, output),
        "sites": len(record.sites),
        "maps": verdicts,
        "named": list(dict.fromkeys(layer.reason for layer in record.without_attention)),
        "wrong": wrong,
        "missed": missing(units, record),
    }


@torch.no_grad()
def sharpen(model: nn.Module) -> None:
    """Make the layers of a random model wider than libraries do, whose weights are almost even at first."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module.elementwise_affine and not bool(module.weight.any()):
            nn.init.ones_(module.weight)  # it would hide what stands before it
        if "LayerScale" in type(module).__name__:  # it would hide what attention did
            for scale in module.parameters():
                nn.init.ones_(scale)
        if isinstance(module, nn.Linear) and type(module.weight) is nn.Parameter:
            spread = float(module.weight.std())
            if 0 < spread < (wanted := GAIN / module.in_features**0.5):
                module.weight *= wanted / spread


def judge(kept: CapturedMap, site: SiteRecord, units: Units, parts: bool) -> str:
    if site.differs:
        return f"weights @ values differ from the output by {site.difference:.2g}"
    causal = bool(kept.allowed.any(-1).all()) and not bool(kept.allowed[..., 0, -1].any())
    if site.offset and not causal and site.queries > 1:
        return "its queries stand at places that nothing shows"
    apart = site.batch != TEXTS
    if apart and not parts:
        return f"{site.batch} texts where {TEXTS} were given"
    several = [*units.kernels, *units.softmaxes]
    if any(is_same(unit, kept.weights) for unit in several):
        return "parts" if apart else "exact"
    if any(same_rows(unit, kept.weights, CLOSE) for unit in several):
        return "laid"
    return "proved" if site.difference is not None else "no function of torch weighed with it"


def missing(units: Units, record: Record) -> list[str]:
    """The modules that called a kernel, and have neither a map nor a name; a softmax may be no attention."""
    said = {site.site.name for site in record.sites} | {layer.name for layer in record.without_attention}
    return sorted(
        owner
        for owner in units.owners
        if not any(f"{owner}.".startswith(f"{name}.") or f"{name}.".startswith(f"{owner}.") for name in said)
    )


@torch.no_grad()
def plain_weights(*args: Any, **options: Any) -> Tensor:
    """The weights of one call, as torch's kernel has them in float64.  -> [..., query, key]"""
    precise = tree_map_only(
        torch.Tensor, lambda each: each.double() if each.is_floating_point() else each, (args, options)
    )
    return unit_weights(*precise[0], **precise[1]).nan_to_num().float()


def is_placed(
    model: nn.Module, arguments: Sequence[Any], inputs: dict[str, Any], kept: CapturedMap
) -> bool | None:
    """Whether a change of token j moves just the rows that give j a weight, in some module around the map.

    None where no module around it is given states of so many tokens, or all of them mix otherwise as well.
    """
    parts = kept.site.name.split(".")
    around = {path: model.get_submodule(path) for path in map(".".join, accumulate([part] for part in parts))}
    given: dict[str, tuple[Any, Any]] = {}
    handles = [
        module.register_forward_pre_hook(
            lambda module, *inputs, path=path: given.setdefault(path, inputs) and None, with_kwargs=True
        )
        for path, module in around.items()
    ]
    with torch.inference_mode():
        model(*arguments, **inputs)
        for handle in handles:
            handle.remove()
        said = set[bool | None]()
        for path in reversed(around):
            if path in given and True not in said:
                said.add(_agrees(around[path], *given[path], kept))
    return True in said or (False if False in said else None)


def _agrees(module: nn.Module, args: Any, kwargs: Any, kept: CapturedMap) -> bool | None:
    """Whether one module moves as the map says; None where its states have other axes, or more moves."""
    count = kept.weights.shape[-1]
    if not args or not isinstance(args[0], Tensor):
        return None
    before, states = module(*args, **kwargs), args[0]
    laid = [_tokens(each, count) for each in (states, before)]
    if laid[0] is None or laid[1] is None:
        return None
    weights = kept.weights[0].amax(0)  # [query, key]
    torch.manual_seed(5)
    mixes = False
    for token in range(0, count, max(1, count // TRIED)):
        changed = states.clone(memory_format=torch.contiguous_format)
        view = _tokens(changed, count, view=True)
        assert view is not None
        view[0, token] += torch.randn(view.shape[-1])
        after = _tokens(module(changed, *args[1:], **kwargs), count)
        if after is None or after.shape != laid[1].shape:
            return None
        moved = (after - laid[1])[0].abs().amax(-1) > 1e-6 * float(laid[1].abs().amax())
        open_ = weights[:, token] > 0
        open_[token] = True
        if not bool(moved[weights[:, token] > SEEN].all()):
            return False
        mixes |= bool((moved & ~open_).any())
    return None if mixes else True


def _tokens(states: Any, count: int, view: bool = False) -> Tensor | None:
    """States as [text, token, channel], if they have so many tokens, and if they can be viewed so."""
    if isinstance(states, (tuple, list)) and states:
        states = states[0]
    if not isinstance(states, Tensor) or not states.is_floating_point() or states.shape[0] != 2:
        return None
    if states.ndim == 3 and states.shape[1] == count:
        return states
    if states.ndim != 4 or (view and not states.is_contiguous()):
        return None
    if states.shape[1] * states.shape[2] == count:
        return states.flatten(1, 2)
    return states.flatten(2).mT if states.shape[2] * states.shape[3] == count else None
