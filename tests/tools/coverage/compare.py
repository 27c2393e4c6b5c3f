"""One model type: captured maps under the default attention against every oracle there is."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from attnscope.capture import Kept
from tests.tools.coverage.layouts import layouts
from tests.tools.coverage.oracles import (
    are_sampled,
    are_weights,
    attentions,
    difference,
    gap,
    kernel_weights,
    run,
    same,
)
from tests.tools.coverage.places import same_rows, same_rows_reordered
from tests.tools.coverage.result import Result

CLOSE = 1e-5
SAYS_ATTENTION = re.compile("att", re.I)


def compare(result: Result, model: Any, eager: Any, given: dict[str, Any]) -> None:
    """Fill a result with what capture, torch's kernels and the eager model say."""
    torch.manual_seed(3)
    with torch.inference_mode():
        plain = model(**given)
    output, record, maps = run(model, given)
    result.identical = same(plain, output)
    result.maps = len(maps)
    result.kernels = sorted({site.kernel for site in record.sites})
    modules = dict(model.named_modules())
    result.unlikely = [
        f"{site.site.name} ({type(modules[site.site.name]).__name__})"
        for site in record.sites
        if not SAYS_ATTENTION.search(
            f"{site.site.name.rpartition('.')[2]} {type(modules[site.site.name]).__name__}"
        )
    ]
    vouched = by_kernels(result, maps, [site.source for site in record.sites], kernel_weights(model, given))
    if eager is not None:
        vouched |= by_itself(result, model, eager, given, maps)
    for number, (kept, site) in enumerate(zip(maps, record.sites, strict=True)):
        if number not in vouched and site.source != "kernel":  # which the kernel itself returned
            result.unvouched.append(f"{kept.site.name} ({type(modules[kept.site.name]).__name__})")


def by_kernels(result: Result, maps: list[Kept], sources: list[str], units: list[Tensor]) -> set[int]:
    """The maps that equal what torch's kernels did."""
    ours = [number for number, source in enumerate(sources) if source == "recomputed"]
    if len(units) != len(ours):
        return set()
    equal = {
        number
        for number, unit in zip(ours, units, strict=True)
        if gap(maps[number].weights, unit) <= CLOSE or same_rows(unit, maps[number].weights, CLOSE)
    }
    result.unit = len(equal)
    return equal


def by_itself(result: Result, model: Any, eager: Any, given: dict[str, Any], maps: list[Kept]) -> set[int]:
    """The maps that equal the eager model's own attentions, or what another kernel weighed with in it."""
    eager.load_state_dict(model.state_dict())
    try:
        output, record, twins = run(eager, given, output_attentions=True)
    except Exception as error:
        if not isinstance(error, TypeError):  # one that takes no such word
            result.note = f"asked for its attentions it fails: {type(error).__name__}: {error}"[:160]
        output, record, twins = run(eager, given)
    vouched = set()
    free = set(range(len(maps)))
    for own in attentions(output):
        result.own += 1
        if not are_weights(own):
            result.own_wrong += 1
            found = from_scores(own, maps)
            result.scores += found is not None
        elif are_sampled(own, model.config):
            result.sampled += 1
            found = None
        else:
            found = equal_map(result, own, maps, free)
        if found is not None:
            vouched.add(found)
            free.discard(found)
    by_name = {(kept.site.name, kept.site.call): number for number, kept in enumerate(twins)}
    for number, kept in enumerate(maps):
        twin = by_name.get((kept.site.name, kept.site.call))
        if twin is not None and difference(kept, twins[twin].weights) <= CLOSE:
            result.twin += 1
            if record.sites[twin].source == "kernel":
                vouched.add(number)
    return vouched


def equal_map(result: Result, own: Tensor, maps: list[Kept], free: set[int]) -> int | None:
    """The map that an own tensor equals, one that is free first: some models list one map twice."""
    for several in (sorted(free), range(len(maps))):
        gaps = {number: difference(maps[number], own) for number in several}
        best = min(gaps, key=lambda number: gaps[number], default=None)
        if best is not None and gaps[best] <= CLOSE:
            result.matched += 1
            result.worst = max(result.worst, gaps[best])
            return best
    for number, kept in enumerate(maps):
        alive = kept.allowed.any(-1, keepdim=True).expand_as(kept.weights)  # rows that see anything
        cut = own[:, :, : kept.weights.shape[2]] if own.ndim == 4 else own  # behind it is padding
        pairs = zip(layouts(kept.weights, cut.shape), layouts(alive.float(), cut.shape), strict=True)
        for (name, laid), (_, rows) in pairs:
            seeing = rows.any(-1, keepdim=True)
            if laid.shape == cut.shape and float(((laid - cut) * seeing).abs().max()) <= CLOSE:
                result.laid += 1
                result.layouts = sorted({*result.layouts, name})
                return number
    for number in sorted(free):
        if same_rows(own, maps[number].weights, CLOSE):
            result.laid += 1
            result.layouts = sorted({*result.layouts, "the windows, blocks or chosen queries by themselves"})
            return number
        if same_rows_reordered(own, maps[number].weights, CLOSE):
            result.laid += 1
            result.layouts = sorted({*result.layouts, "the rows in the order in which they were chosen"})
            return number
    return None


def from_scores(own: Tensor, maps: list[Kept]) -> int | None:
    """The map that an own tensor becomes by a softmax: the model returned its scores."""
    if not own.is_floating_point() or own.ndim < 3:
        return None
    weights = torch.softmax(own, -1)
    return next((number for number, kept in enumerate(maps) if difference(kept, weights) <= CLOSE), None)
