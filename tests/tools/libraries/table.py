"""The second part of the coverage table, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tools.libraries.check import Checked

HEAD = """# Libraries beside transformers

Made by `python -m tests.tools.libraries` (see its folder): small random models of libraries that people use,
run plainly, observed, and once more under an oracle that has no part in the capture: the formula of torch's
kernels in float64, and the results of all softmaxes. Of each kind of map in a model (as many heads, queries
and keys) the first two layers are compared, whole.

- **exact**: no weight differs from the oracle's by more than 1e-5, text by text, head by head, row by row.
- **placed**: exact in another layout: its rows are the oracle's (windows, chunks, blocks), put at their
  places among all tokens. That the places are right the module says itself: a change of token j moves just
  the rows that give j a weight. **not told**: the same, where the modules around it mix by convolutions, too.
- **proved**: no result of torch's own functions holds its rows (weights that were written out, mixed once
  more, or without the keys of padding); weights @ values are the output, call by call. Where its rows stand
  is not looked at here.
- **parts**: exact maps of one window, frame or slice each, and a sentence beside them says so.
- **named**: layers of which nothing is shown, with the reason.
- **silently wrong**: anything else that was captured. **missed**: a kernel without a map or a name.

"""


def table(results: Sequence[Checked]) -> str:
    """Counts, then a row for each model, then what is named."""
    ran = [result for result in results if result.identical is not None]
    kinds = {
        "exact": sum(r.exact for r in ran),
        "placed": sum(r.laid for r in ran),
        "rows exact, places not told": sum(r.unplaced for r in ran),
        "proved by weights @ values alone": sum(r.proved for r in ran),
        "parts, said to be parts": sum(r.parts for r in ran),
        "**silently wrong**": sum(len(r.wrong) for r in ran),
        "kernels missed in silence": sum(len(r.missed) for r in ran),
    }
    lines = [
        f"| models | {len(results)} |",
        "|---|---|",
        f"| built and run | {len(ran)} |",
        f"| of those, output bit-identical under observation | {sum(bool(r.identical) for r in ran)} |",
        f"| of those, with attention that is shown | {sum(bool(r.sites) for r in ran)} |",
        f"| of those, with layers that are named instead | {sum(bool(r.named) for r in ran)} |",
        f"| maps compared | {sum(list(kinds.values())[:-1])} |",
        *(f"| of those, {name} | {count} |" for name, count in list(kinds.items())[:-1]),
        f"| kernels missed in silence | {kinds['kernels missed in silence']} |",
    ]
    parts = [HEAD + "\n".join(lines)]
    wrong = [result for result in ran if result.wrong or result.missed or not result.identical]
    if wrong:
        parts.append("\n## Silently wrong\n")
        parts += [f"- `{r.name}`: {'; '.join([*r.wrong, *r.missed])}" for r in wrong]
    parts.append("\n## Named\n")
    parts += [f"- `{r.name}`: {'; '.join(r.named)}" for r in ran if r.named]
    parts.append("\n## Did not run\n")
    parts += [f"- `{r.name}`: {r.note}" for r in results if r.identical is None]
    parts.append("\n## All models that ran\n")
    parts.append(
        "| model | same output | attention calls | exact | placed | not told | proved | parts | named |"
    )
    parts.append("|---|---|---|---|---|---|---|---|---|")
    parts += [row(result) for result in ran]
    return "\n".join(parts) + "\n"


def row(result: Checked) -> str:
    """One line of the table."""
    numbers = (result.exact, result.laid, result.unplaced, result.proved, result.parts, len(result.named))
    same = "yes" if result.identical else "**no**"
    return f"| {' | '.join([f'`{result.name}`', same, *map(str, (result.sites, *numbers))])} |"
