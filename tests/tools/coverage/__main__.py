"""How many architectures of transformers are captured exactly: ``python -m tests.tools.coverage``.

It builds some 800 model types, each in a process of its own, and writes ``tests/tools/coverage.md``.
"""

from dataclasses import asdict

from tests.tools.coverage.compare import Result, attempt
from tests.tools.survey import Row, grid, report, survey

HEAD = """# Architectures that are captured exactly

Maps of windows are put at their places among all tokens; where a model's own report keeps the windows
apart, the two are compared row by row. Padding inside of windows is no token, so maps of padded windows (the
vision towers of `sam` and its copies) equal no report, and a note beside the picture says so. Reasons with
two figures were measured: eager against default attention in both types.

Made by `python -m tests.tools.coverage` (see its folder): a tiny random model of every model type that
transformers {version} registers, run as it runs by default, unobserved and observed, and again with its own
eager attention and `output_attentions`. Equal means: no weight differs by more than 1e-5.

- **same output**: the observed pass returned the unobserved pass's numbers, bit by bit.
- **own**: tensors that the model itself calls attentions and that are attention over keys: 3 axes, none
  negative, rows of at most 1, and no weights of the few sampled points of deformable attention.
  **equal** of them: captured under the default attention. **laid out**: equal too, but the model lays its
  report out in another way than query by key, or returns less of it (windows, blocks, a mean over the heads).
- **maps**: attention calls captured. **kernel**: of them, equal to what torch's own kernel did, called a
  second time with unit values or asked for its weights. **twin**: of them, equal to what was captured from
  the eager model: a second source where eager is another implementation, none where a model has only one.

"""

OPEN = "by default every query sees every key (a mask of ones is dropped), its eager attention is causal"
CAUSAL = "by default it is causal (no mask, and its module says so), its eager attention sees every key"
LEFT = "its softmax stays in float32"


def rounding(single: str, double: str, why: str = "") -> str:
    """What eager and default attention differ by in both types."""
    return f"roundings: {single} in float32 become {double} in float64{f' ({why})' if why else ''}"


TEXT = (
    "in eager its text backbone sees every token, where by default it keeps to the mask it is given, and "
    "all that reads the text differs; compared with an eager model whose text backbone runs as by default"
)
PADDED = (
    "its windows are padded, and what they weigh on the padding stands at no position of the map: the rows "
    "sum to what is left, and a note beside the picture says so"
)
SINK = (
    "its eager attention takes the sink's share off the output, and not off the weights that it returns; "
    "those shown have it taken off, and reproduce the output"
)

KNOWN = {
    "aimv2": f"in its text tower, {OPEN}",
    "aimv2_text_model": OPEN,
    "colpali": OPEN,
    "deepseek_ocr2_sam_vision_model": PADDED,
    "got_ocr2_vision": PADDED,
    "sam_hq_vision_model": PADDED,
    "sam_vision_model": PADDED,
    "slanext_vision": PADDED,
    "unlimited_ocr_sam_vision_model": PADDED,
    "diffusion_gemma": rounding("1.1e-5", "2.9e-6", LEFT),
    "gemma4": rounding("1.2e-5", "2.3e-6", LEFT),
    "gemma4_text": rounding("1.2e-5", "2.3e-6", LEFT),
    "granite_swa": SINK,
    "granitemoe_swa": SINK,
    "grounding-dino": TEXT,
    "mm-grounding-dino": TEXT,
    "lw_detr_vit": "its report has patches in the order of windows; put in that of the picture, it is equal",
    "moshi_depth": CAUSAL,
    "seggpt": "its windows of two pictures in a row are named, not shown",
    "mt5": rounding("2.8e-5", "6.2e-14"),
    "muse_spark": rounding("1.4e-5", "1.6e-6", LEFT),
    "paligemma": OPEN,
    "pegasus_x": "its blocks and its global tokens are named, not shown",
    "phi4_multimodal_vision": f"{CAUSAL}, and torch's kernel does likewise with unit values",
    "pop2piano": rounding("1.0e-5", "2.4e-14"),
    "reformer": "its chunks of keys are not followed: named, not shown",
    "rf_detr": rounding("1.1e-3", "1.3e-17"),
    "sam": PADDED,
    "umt5": rounding("1.2e-5", "1.8e-14"),
    "sam_hq": PADDED,
}
"""Exceptions that were looked into, and what was found."""


COLUMNS = "type, class, same output, own, equal, laid out, maps, kernel, twin, computed by"


def table(rows: list[Row]) -> str:
    """Figures first, then every exception with its reason, then every type."""
    import transformers

    results = [Result(**row) for row in rows]
    ran = [result for result in results if result.identical is not None]
    speaking = [result for result in ran if result.speaking]
    exact = [result for result in speaking if result.exact and result.name not in KNOWN]
    laid = [result for result in speaking if result.exact_laid_out]
    others = [result for result in speaking if result not in exact and result not in laid]
    vouched = sum(not result.unvouched for result in others)
    attending = [result for result in ran if result.maps]
    oracles = "(own, kernel, or the weights that the kernel returned)"
    counts = {
        "model types registered": len(results),
        "built": sum(r.built for r in results),
        "built and run": len(ran),
        "of those, output bit-identical under observation": sum(bool(r.identical) for r in ran),
        "of those, their own eager `output_attentions` holds attention over keys": len(speaking),
        "of those, **every tensor equal under the default attention**": f"**{len(exact)}**",
        "of those, every tensor equal, some in another layout": len(laid),
        "of those, not equal for a reason named below, while an oracle vouches for every map": vouched,
        "of those, not equal otherwise": len(others) - vouched,
        "of all that ran, with attention captured": len(attending),
        f"of those, an oracle {oracles} vouches for every map": sum(not r.unvouched for r in attending),
        "maps captured in all": sum(r.maps for r in ran),
        "of those, vouched for": sum(r.maps - len(r.unvouched) for r in ran),
    }

    says = {
        "Exceptions: own attentions that do not equal the captured ones": {r.name: reason(r) for r in others},
        "Equal in another layout": {
            r.name: f"{r.laid} of {r.speaking}: {', '.join(r.layouts)}" for r in laid
        },
        "Scores where weights were promised": {
            r.name: f"{r.scores} of its tensors become captured maps by a softmax" for r in ran if r.scores
        },
        "Maps that nothing but capture vouches for": {
            r.name: f"{len(r.unvouched)} of {r.maps}: {', '.join(r.unvouched)}" for r in ran if r.unvouched
        },
        "Maps whose module does not call itself attention": {
            r.name: ", ".join(dict.fromkeys(r.unlikely)) for r in ran if r.unlikely
        },
        "Types whose own `output_attentions` says nothing usable": {
            r.name: silent(r) for r in ran if not r.speaking
        },
        "Types that did not run": {
            r.name: r.note + " (built)" * r.built for r in results if r.identical is None
        },
    }
    every = "## All types that ran\n", *grid([COLUMNS.split(", "), *map(cells, ran)])
    return report(HEAD.format(version=transformers.__version__), counts, says, every)


def reason(result: Result) -> str:
    """Why a type's own eager attention is not what was captured."""
    found = f"{result.matched + result.laid} of {result.speaking} equal, {result.maps} maps captured"
    said = KNOWN.get(result.name, "not looked into")
    return f"{found}; {said}" + ("" if result.unvouched else "; an oracle vouches for every map")


def silent(result: Result) -> str:
    """What a type without usable attentions of its own gave."""
    said = [f"returns {result.own_wrong} tensors that are no attention weights"] * bool(result.own_wrong)
    said += [f"returns {result.sampled} tensors over sampled points"] * bool(result.sampled)
    said += [result.note] * bool(result.note)
    maps = f"{result.maps} maps captured" if result.maps else "no map captured"
    return "; ".join([*(said or ["returns no attentions"] * bool(result.maps)), maps])


def cells(result: Result) -> list[object]:
    numbers = [result.speaking, result.matched, result.laid, result.maps, result.unit, result.twin]
    same = "yes" if result.identical else "**no**"
    return [f"`{result.name}`", result.model, same, *numbers, ", ".join(result.kernels)]


if __name__ == "__main__":
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    survey("coverage", lambda: CONFIG_MAPPING_NAMES, lambda name: asdict(attempt(name)), table)
