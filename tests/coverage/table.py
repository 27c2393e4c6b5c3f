"""The coverage table in Markdown."""

from __future__ import annotations

from tests.coverage.compare import Result

HEAD = """# Architectures that are captured exactly

Made by `python -m tests.coverage` (see `tests/coverage/`): a tiny random model of every model type that
transformers {version} registers, run as it runs by default, unobserved and observed, and again with its own
eager attention and `output_attentions`.

- **same output**: the observed pass returned the unobserved pass's numbers, bit by bit.
- **own**: tensors that the model itself calls attentions and that are attention weights (3 axes, none
  negative, rows of at most 1). **equal** of them: captured under the default attention within 1e-5.
- **maps**: attention calls captured. **kernel**: of them, equal within 1e-5 to what torch's own kernel did
  with unit values in a further pass (calls of that kernel only). **eager**: of them, equal to what the
  eager kernel weighed with, whether or not the model returns it.

"""


MASK = "its default pass drops an all-ones mask and is not causal, its eager one is; torch's kernel vouches"
ROUNDING = (
    "large scores make the roundings of the first layer visible (1.1e-5); torch's kernel vouches for all"
)
SAMPLES = "four of its tensors are weights of a few sampled points (deformable attention), which are no keys"
TEXT = f"its eager text backbone weighs otherwise than by default, as all behind it sees; {SAMPLES}"
KNOWN = {
    "aimv2": MASK,
    "aimv2_text_model": MASK,
    "gemma4": ROUNDING,
    "gemma4_text": ROUNDING,
    "deformable_detr": SAMPLES,
    "grounding-dino": TEXT,
    "mm-grounding-dino": TEXT,
    "longformer": "its window attention weighs values in overlapping bands, which is not captured yet",
    "led": "its encoder's window attention weighs values in overlapping bands, which is not captured yet",
    "reformer": "its hashed attention takes exponentials itself, in sorted chunks, which is not captured yet",
    "pegasus_x": "one softmax over global and local keys weighs them apart: two maps, where it returns one",
    "wavlm": "it returns the mean over the heads; the captured weights are those of each head",
}
"""Exceptions that were looked into."""


def table(results: list[Result], version: str) -> str:
    """Figures first, then every exception with its reason, then every type."""
    ran = [result for result in results if result.identical is not None]
    speaking = [result for result in ran if result.own > result.own_wrong]
    exact = [result for result in speaking if result.matched == result.own - result.own_wrong]
    proven = [result for result in ran if result.maps and (result in exact or checked(result))]
    lines = [
        f"| model types registered | {len(results)} |",
        "|---|---|",
        f"| built | {sum(result.built for result in results)} |",
        f"| built and run | {len(ran)} |",
        f"| of those, output bit-identical under observation | {sum(bool(r.identical) for r in ran)} |",
        f"| of those, their own eager `output_attentions` holds attention | {len(speaking)} |",
        f"| of those, captured exactly under the default attention | {len(exact)} |",
        f"| of all that ran, with attention captured | {sum(r.maps > 0 for r in ran)} |",
        f"| of those, every map equals an oracle (own, kernel or eager) | {len(proven)} |",
    ]
    parts = [HEAD.format(version=version), "\n".join(lines), "\n\n## Exceptions\n"]
    parts += [f"- `{r.type}`: {reason(r)}" for r in speaking if r not in exact]
    parts.append("\n## Types whose own `output_attentions` says nothing usable\n")
    parts += [f"- `{r.type}`: {silent(r)}" for r in ran if r.own == r.own_wrong]
    parts.append("\n## Types that did not run\n")
    idle = [result for result in results if result.identical is None]
    parts += [f"- `{r.type}`{' (built)' if r.built else ''}: {r.note}" for r in idle]
    parts.append("\n## All types that ran\n")
    parts.append("| type | class | same output | own | equal | maps | kernel | eager | computed by |")
    parts.append("|---|---|---|---|---|---|---|---|---|")
    parts += [row(r) for r in ran]
    return "\n".join(parts) + "\n"


def checked(result: Result) -> bool:
    """Whether torch's kernel or the eager kernel vouches for every map."""
    return result.maps > 0 and (result.unit == result.maps or result.twin == result.maps)


def reason(result: Result) -> str:
    """Why a type's own eager attention is not what was captured."""
    found = f"{result.matched} of {result.own - result.own_wrong} equal"
    if result.type in KNOWN:
        return f"{found}, {result.maps} maps captured; {KNOWN[result.type]}"
    if result.unit == result.maps and result.maps:
        return (
            f"{found}; its eager pass is another than its default one, or it returns other tensors. All "
            f"{result.maps} maps are what torch's kernel did by default"
        )
    if result.twin == result.maps and result.maps:
        return f"{found}; all {result.maps} maps are what its eager kernel weighed with, not what it returns"
    return f"{found}, {result.maps} maps captured. {result.note}".strip()


def silent(result: Result) -> str:
    """What a type without usable attentions of its own gave."""
    if not result.maps:
        return "no map captured"
    said = f"{result.own_wrong} tensors that are no attention weights" if result.own else "no attentions"
    by = "its eager kernel" if result.twin == result.maps else ""
    by = "torch's kernel" if result.unit == result.maps else by
    return f"returns {said}; {result.maps} maps captured" + (f", all equal to {by}" if by else "")


def row(result: Result) -> str:
    """One line of the table."""
    same = "yes" if result.identical else "**no**"
    numbers = [result.own - result.own_wrong, result.matched, result.maps, result.unit, result.twin]
    cells = [f"`{result.type}`", result.model, same, *map(str, numbers), ", ".join(result.kernels)]
    return f"| {' | '.join(cells)} |"
