"""Count the architectures of transformers that are captured exactly: ``python -m tests.tools.coverage``.

It builds some 800 model types, each in its own process, and writes ``tests/tools/coverage.md``.
"""

from collections import Counter

import transformers

from tests.tools.coverage.compare import Result, attempt
from tests.tools.coverage.recipes import DINO, RECIPES
from tests.tools.survey import Row, grid, report, survey

COLUMNS = "type, class, same output, own, equal, other layout, maps, kernel, twin, computed by"


def table(rows: list[Row]) -> str:
    """Scores first, then every exception with its reason, then every type."""
    results = [Result(**row | {"own": Counter(row.get("own"))}) for row in rows]
    ran = [result for result in results if result.identical is not None]
    speaking = [result for result in ran if result.speaking]
    exact = [r for r in speaking if r.exact and RECIPES.get(r.name) is not DINO]  # that is not quite eager
    laid = [result for result in speaking if result.exact_laid_out]
    others = [result for result in speaking if result not in exact and result not in laid]
    vouched = sum(not result.unvouched for result in others)
    attending = [result for result in ran if result.maps]
    even = {result.name: result.flat for result in attending if result.flat is not None}
    pictured = [result for result in ran if result.axes]
    numbered = [result for result in pictured if "numbered" in result.axes]
    placed = [result for result in pictured if result not in numbered]
    oracles = "(own, kernel, or the weights that the kernel returned)"
    counts = {
        f"model types registered by transformers {transformers.__version__}": len(results),
        "built": sum(r.built for r in results),
        "built and run": len(ran),
        "of those, output bit-identical under observation": sum(bool(r.identical) for r in ran),
        "of those, their own eager `output_attentions` is attention over keys": len(speaking),
        "of those, **every tensor equal under the default attention**": f"**{len(exact)}**",
        "of those, every tensor equal, some in another layout": len(laid),
        "of those, not equal for a reason listed below, while an oracle confirms every map": vouched,
        "of those, not equal otherwise": len(others) - vouched,
        "of all that ran, with attention captured": len(attending),
        f"of those, an oracle {oracles} confirms every map": sum(not r.unvouched for r in attending),
        "maps captured in all": sum(r.maps for r in ran),
        "of those, confirmed": sum(r.maps - len(r.unvouched) for r in ran),
        f"of those of {len(even)} types, even in each row, so that no comparison fails": sum(even.values()),
        "types that show maps of a picture alone": len(pictured),
        "of those, every axis is named": sum("queries" not in r.axes for r in placed),
        "of those, every axis but that of a decoder's queries": sum("queries" in r.axes for r in placed),
    }

    says = {
        "Own attentions that differ from the captured ones": {r.name: found(r) for r in others},
        "Equal in another layout": {
            r.name: f"{r.laid} of {r.speaking}: {', '.join(r.layouts)}" for r in laid
        },
        "Scores in place of weights": {
            r.name: f"{r.scores} of its tensors become captured maps by a softmax" for r in ran if r.scores
        },
        "Maps without an independent confirmation": {
            r.name: f"{len(r.unvouched)} of {r.maps}: {', '.join(r.unvouched)}" for r in ran if r.unvouched
        },
        "Maps of modules not named attention": {
            r.name: ", ".join(dict.fromkeys(r.unlikely)) for r in ran if r.unlikely
        },
        "Maps with rows that are all even": {
            r.name: f"{even[r.name]} of {r.maps}" for r in ran if even.get(r.name)
        },
        "Pictures with numbered axes": {
            r.name: f"{r.axes['numbered']} of {sum(r.axes.values())} maps" for r in numbered
        },
        "Pictures that are refused": {r.name: r.refusal for r in attending if r.refusal},
        "Types without usable `output_attentions`": {r.name: silent(r) for r in ran if not r.speaking},
        "Types that did not run": {
            r.name: r.note + " (built)" * r.built for r in results if r.identical is None
        },
    }
    every = "## All types that ran\n", *grid([COLUMNS.split(", "), *map(cells, ran)])
    return report("coverage", counts, says, every)


def found(result: Result) -> str:
    """How much of a type's own eager attention is what was captured."""
    said = f"{result.own['equal'] + result.laid} of {result.speaking} equal, {result.maps} maps captured"
    return said + ("" if result.unvouched else "; an oracle confirms every map")


def silent(result: Result) -> str:
    """What a type without usable attentions of its own gave."""
    wrong, sampled = result.own["wrong"] + result.scores, result.own["sampled"]
    said = [f"returns {wrong} tensors that are not attention weights"] * bool(wrong)
    said += [f"returns {sampled} tensors over sampled points"] * bool(sampled)
    said += [result.note] * bool(result.note)
    maps = f"{result.maps} maps captured" if result.maps else "no map captured"
    return "; ".join([*(said or ["returns no attentions"] * bool(result.maps)), maps])


def cells(result: Result) -> list[object]:
    numbers = [result.speaking, result.own["equal"], result.laid, result.maps, result.unit, result.twin]
    same = "yes" if result.identical else "**no**"
    return [f"`{result.name}`", result.model, same, *numbers, ", ".join(result.kernels)]


if __name__ == "__main__":
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    survey("coverage", lambda: CONFIG_MAPPING_NAMES, lambda name: vars(attempt(name)), table, seconds=150)
