"""Explanations of measures and roles, for people."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from textwrap import wrap

from attnscope.errors import SelectionError
from attnscope.measures.forms import MEASURES
from attnscope.measures.roles import ROLES, explain_role
from attnscope.measures.weighting import METHODS, WEIGHTINGS
from attnscope.registry import load_plugins, nearest_name

NEED_WORDS = {
    "positions": "queries and keys on one sequence",
    "queries": "token labels",
    "keys": "token labels",
    "scores": "scores before the softmax, which a file of weights lacks",
}
"""What a measure needs, in words."""

TERMS_FILE = Path(__file__).with_name("terms.txt")
"""Other terms, each with its formula and source: a block per term, as it is printed."""


FAMILY_ROWS = (
    ("offset=K", "share", "A[i, i+K], for any K: offset=-2"),
    ("window=S+R", "share", "Σ A[i, j] over j < S and |i - j| < R: window=4+256"),
    ("distance2d=P", "pixels", "distance2d, of patches P pixels wide: distance2d=16"),
    ("[NAME]", "share", "Σ A[i, j] over special tokens of that name: [CLS], </s>"),
)
"""Measures whose name has a number or a token of the user's choice: name, unit and meaning."""


def list_words() -> str:
    """Every measure with its unit and formula, then the other words by kind."""
    load_plugins("measures")
    rows = [(name, measure.unit, measure.formula) for name, measure in MEASURES.items()]
    width = max(len(name) for name in MEASURES)
    lines = [f"{name:{width}}  {unit:6}  {meaning}" for name, unit, meaning in (*rows, *FAMILY_ROWS)]
    for kind, names in _others().items():
        lines += ["", *wrap(f"{kind}: {', '.join(names)}", 80)]
    return "\n".join(lines)


@cache
def _terms() -> dict[str, str]:
    """The blocks of ``TERMS_FILE`` by their words."""
    blocks = TERMS_FILE.read_text("utf-8").strip().split("\n\n")
    return {re.split(r":| \(", block)[0]: block for block in blocks}


def _others() -> dict[str, tuple[str, ...]]:
    """The words that are no measures, by kind."""
    kinds = {"roles": ROLES, "weightings": WEIGHTINGS, "methods of flow": METHODS, "other words": _terms()}
    return {kind: tuple(names) for kind, names in kinds.items()}


def explain(name: str) -> str:
    """Explain a word of the screen, such as ``feed-forward 0`` or ``embeddings (segment)``.

    Raises ``SelectionError`` for a word that has no meaning here.
    """
    plain = re.sub(r" \(.*\)$| \d+$", "", name)
    for word in dict.fromkeys((name, plain, plain.lower(), plain.lower().removesuffix("s"))):
        if found := [
            *filter(None, (_measure(word), explain_role(word), _weighting(word), _terms().get(word)))
        ]:
            return "\n".join(found)
    near = nearest_name(name, (*MEASURES, *(word for words in _others().values() for word in words)))
    raise SelectionError(f"no term {name!r}: {near}attnscope explain lists every word")


def _measure(name: str) -> str:
    if name not in MEASURES:
        return ""
    measure = MEASURES[name]
    needs = list(dict.fromkeys(NEED_WORDS[need] for need in measure.form.needs))
    lines = [
        f"{name}: {measure.summary}.",
        f"  formula   {measure.formula}",
        f"  unit      {measure.unit}, {measure.bounds}",
        f"  average   over {measure.rows}",
        "  baseline  the same with uniform attention, 1/n_i on each of the n_i unmasked keys",
        *([f"  needs     {' and '.join(needs)}"] if needs else []),
        f"  source    {measure.source}",
    ]
    return "\n".join(lines)


def _weighting(name: str) -> str:
    explained = WEIGHTINGS.get(name) or METHODS.get(name)
    if explained is None:
        return ""
    option = f"--weighting {name}" if name in WEIGHTINGS else f"flow --method {name}"
    meaning = f"a cell is the share {explained.share}" if name in WEIGHTINGS else explained.share
    alone = name in ("rollout", "flow")
    lines = [
        f"{name} ({option}): {meaning}.",
        f"  formula   {explained.formula}",
        "  unit      share of a row; rows sum to 1, so that measures and baselines mean the same",
        f"  needs     {'weights only' if alone else 'the model: files of weights have no values'}",
        f"  source    {explained.source}",
    ]
    return "\n".join(lines)
