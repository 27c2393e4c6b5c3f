"""The coverage table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tools.coverage.known import KNOWN
from tests.tools.coverage.result import Result

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


def table(results: Sequence[Result], version: str) -> str:
    """Figures first, then every exception with its reason, then every type."""
    ran = [result for result in results if result.identical is not None]
    speaking = [result for result in ran if result.speaking]
    exact = [result for result in speaking if result.exact and result.name not in KNOWN]
    laid = [result for result in speaking if result.exact_laid_out]
    others = [result for result in speaking if result not in exact and result not in laid]
    vouched = [result for result in others if not result.unvouched]
    attending = [result for result in ran if result.maps]
    lines = [
        f"| model types registered | {len(results)} |",
        "|---|---|",
        f"| built | {sum(result.built for result in results)} |",
        f"| built and run | {len(ran)} |",
        f"| of those, output bit-identical under observation | {sum(bool(r.identical) for r in ran)} |",
        f"| of those, their own eager `output_attentions` holds attention over keys | {len(speaking)} |",
        f"| of those, **every tensor equal under the default attention** | **{len(exact)}** |",
        f"| of those, every tensor equal, some in another layout | {len(laid)} |",
        "| of those, not equal for a reason named below, while an oracle vouches for every map "
        f"| {len(vouched)} |",
        f"| of those, not equal otherwise | {len(others) - len(vouched)} |",
        f"| of all that ran, with attention captured | {len(attending)} |",
        "| of those, an oracle (own, kernel, or the weights that the kernel returned) vouches for every map "
        f"| {sum(not r.unvouched for r in attending)} |",
        f"| maps captured in all | {sum(r.maps for r in ran)} |",
        f"| of those, vouched for | {sum(r.maps - len(r.unvouched) for r in ran)} |",
    ]
    parts = [HEAD.format(version=version), "\n".join(lines)]
    parts += section("Exceptions: own attentions that do not equal the captured ones", others, reason)
    parts += section("Equal in another layout", laid, layout)
    parts += section(
        "Scores where weights were promised",
        [result for result in ran if result.scores],
        lambda r: f"{r.scores} of its tensors become captured maps by a softmax",
    )
    parts += section(
        "Maps that nothing but capture vouches for",
        [result for result in ran if result.unvouched],
        lambda r: f"{len(r.unvouched)} of {r.maps}: {', '.join(r.unvouched)}",
    )
    parts += section(
        "Maps whose module does not call itself attention",
        [result for result in ran if result.unlikely],
        lambda r: ", ".join(dict.fromkeys(r.unlikely)),
    )
    parts += section(
        "Types whose own `output_attentions` says nothing usable",
        [result for result in ran if not result.speaking],
        silent,
    )
    parts += section(
        "Types that did not run",
        [result for result in results if result.identical is None],
        lambda r: r.note + (" (built)" if r.built else ""),
    )
    parts.append("\n## All types that ran\n")
    parts.append(
        "| type | class | same output | own | equal | laid out | maps | kernel | twin | computed by |"
    )
    parts.append("|---|---|---|---|---|---|---|---|---|---|")
    parts += [row(result) for result in ran]
    return "\n".join(parts) + "\n"


def section(title: str, results: Sequence[Result], says: object) -> list[str]:
    """A heading with a line for each type, and how many there are."""
    assert callable(says)
    return [f"\n## {title} ({len(results)})\n", *(f"- `{r.name}`: {says(r)}" for r in results)]


def reason(result: Result) -> str:
    """Why a type's own eager attention is not what was captured."""
    found = f"{result.matched + result.laid} of {result.speaking} equal, {result.maps} maps captured"
    said = KNOWN.get(result.name, "not looked into")
    by = "" if result.unvouched else "; an oracle vouches for every map"
    return f"{found}; {said}{by}"


def layout(result: Result) -> str:
    """What a type's report holds in the place of its weights."""
    return f"{result.laid} of {result.speaking}: {', '.join(result.layouts)}"


def silent(result: Result) -> str:
    """What a type without usable attentions of its own gave."""
    said = []
    if result.own_wrong:
        said.append(f"returns {result.own_wrong} tensors that are no attention weights")
    if result.sampled:
        said.append(f"returns {result.sampled} tensors over sampled points")
    if result.note:
        said.append(result.note)
    maps = f"{result.maps} maps captured" if result.maps else "no map captured"
    return "; ".join([*(said or ["returns no attentions"]), maps] if result.maps else [*said, maps])


def row(result: Result) -> str:
    """One line of the table."""
    same = "yes" if result.identical else "**no**"
    numbers = [result.speaking, result.matched, result.laid, result.maps, result.unit, result.twin]
    cells = [f"`{result.name}`", result.model, same, *map(str, numbers), ", ".join(result.kernels)]
    return f"| {' | '.join(cells)} |"
