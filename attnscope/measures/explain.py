"""Explanations of measures and roles, for people."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap

from attnscope.errors import SelectionError
from attnscope.measures.forms import MEASURES
from attnscope.measures.roles import RETRIEVES, ROLES, STREAMS, explain_role
from attnscope.measures.weighing import METHODS, WEIGHINGS
from attnscope.registry import load_plugins, nearest_name

NEEDS = {
    "positions": "queries and keys on one sequence",
    "queries": "token labels",
    "keys": "token labels",
    "scores": "the scores before the softmax, which a file of weights has not",
}
"""What a measure needs, in words."""

OF_PREDICTIONS = {
    "importance": (
        "importance (ablate --importance): how much the model's predictions depend on the head, estimated.\n"
        "  formula   E_x |∂L(x) / ∂ξ_h|, ξ_h = 1 a gate on the head's output, L the mean cross-entropy\n"
        "  unit      nats, 0 or more\n"
        "  average   over texts; a masked model reads each in seven copies, which are averaged first\n"
        "  needs     an output head; two passes, whatever the number of heads\n"
        "  beware    a slope at the whole head says little of its absence: ablate measures that. On\n"
        "            sample_inputs/sentences.txt the two rank the heads with a Spearman correlation of 0.78\n"
        "            (own) and 0.64 (own-causal)\n"
        "  source    Michel et al. 2019, Are Sixteen Heads Really Better than One?, section 4.1"
    ),
    "ablation": (
        "ablation (attnscope ablate): how much the loss rises without the head.\n"
        "  formula   L without the head - L with all heads, L the mean cross-entropy of a prediction\n"
        "  unit      nats; below 0 where the model predicts better without it\n"
        "  average   over all predicted tokens; ± is the standard error of that ratio over texts\n"
        "  instead   zero: the head's output is 0; mean: it is its mean over the rows of the first texts\n"
        "  needs     an output head; a pass for each head, from its layer on\n"
        "  source    Michel et al. 2019, Are Sixteen Heads Really Better than One?, section 3"
    ),
    "retrieval": (
        "  role      cachecost --needle: a key-value head with a query head that does so in at least\n"
        f"            {RETRIEVES:.0%} of the rows which recall a needle (Wu et al.: 0.1)"
    ),
    "streaming": (
        "streaming (attnscope cachecost): a head that needs the first tokens and the last ones alone.\n"
        "  formula   Σ A[i, j] over j < sink and i - j < recent: the measure window=S+R\n"
        f"  role      at least {STREAMS:.0%} of its weight is there, and it is not a retrieval head\n"
        "  beware    Xiao et al. choose such heads by what their limit costs, with a gate that is trained\n"
        "            on outputs; cachecost measures that cost as a loss, exactly, head by head\n"
        "  source    Xiao et al. 2024, DuoAttention; Xiao et al. 2023, StreamingLLM"
    ),
    "logits": (
        "logits (attnscope logits): what each part of the model adds to the logit of a prediction.\n"
        "  formula   ((o_h W_O,h ⊙ γ) / σ) · W_U[t]; γ and σ the weight and the spread of the last norm, σ\n"
        "            held as it was in the pass; every other norm that an output goes through is held, too\n"
        "  unit      logits; heads, feed-forward parts, embeddings and biases sum to the logit\n"
        "  needs     an output head, and a stream of states that can be followed from the parts to it\n"
        "  beware    what later parts make of a head's output is not in it: ablate shows that as well\n"
        "  source    nostalgebraist 2020, interpreting GPT: the logit lens; Elhage et al. 2021, A\n"
        "            Mathematical Framework for Transformer Circuits; Wang et al. 2022, Interpretability in\n"
        "            the Wild"
    ),
}
"""The explanations of prediction figures, beside those of measures."""


FAMILIES = (
    ("offset=K", "share", "A[i, i+K], for any K: offset=-2"),
    ("window=S+R", "share", "Σ A[i, j] over j < S and |i - j| < R: window=4+256"),
    ("distance2d=P", "pixels", "distance2d, of patches P pixels wide: distance2d=16"),
    ("[NAME]", "share", "Σ A[i, j] over special tokens of that name: [CLS], </s>"),
)
"""Measures with a number or a name of the user's in theirs: name, unit and meaning."""


TERMS: Mapping[str, tuple[str, str, str]] = {
    "head": (
        "one of the parallel attentions of a layer; L5H3 is head 3 of layer 5, both counted from 0",
        "",
        "",
    ),
}
"""Other words of the screen: meaning, formula, and source or where it is seen."""


def list_words() -> str:
    """Every measure with its unit and formula, then the other words by kind."""
    load_plugins("measures")
    rows = [(name, measure.unit, measure.formula) for name, measure in MEASURES.items()]
    width = max(len(name) for name in MEASURES)
    lines = [f"{name:{width}}  {unit:6}  {meaning}" for name, unit, meaning in (*rows, *FAMILIES)]
    for kind, names in _others().items():
        lines += ["", *wrap(f"{kind}: {', '.join(names)}", 80)]
    return "\n".join(lines)


def _others() -> dict[str, tuple[str, ...]]:
    """The words that are no measures, by kind."""
    kinds = {
        "roles": ROLES,
        "weightings": WEIGHINGS,
        "methods of flow": METHODS,
        "of predictions": OF_PREDICTIONS,
    }
    return {kind: tuple(names) for kind, names in (*kinds.items(), ("other words", TERMS))}


def explain(name: str) -> str:
    """Explain a word of the screen. Raises ``SelectionError`` that names what exists."""
    parts = _measure(name), explain_role(name), _weighing(name), OF_PREDICTIONS.get(name), _term(name)
    if not any(parts):
        others = _others()
        near = nearest_name(name, (*MEASURES, *(word for words in others.values() for word in words)))
        known = "; ".join(f"{kind}: {', '.join(words)}" for kind, words in others.items())
        raise SelectionError(
            f"no word {name!r}: {near}measures: {', '.join((*MEASURES, *MEASURES.families))}; {known}"
        )
    return "\n".join(filter(None, parts))


def _term(name: str) -> str:
    term = TERMS.get(name) or TERMS.get(name.lower())
    if term is None:
        return ""
    meaning, formula, source = term
    lines = [f"{name}: {meaning}.", *([f"  formula   {formula}"] if formula else [])]
    return "\n".join([*lines, *([f"  source    {source}"] if source else [])])


def _measure(name: str) -> str:
    if name not in MEASURES:
        return ""
    measure = MEASURES[name]
    needs = list(dict.fromkeys(NEEDS[need] for need in measure.form.needs))
    lines = [
        f"{name}: {measure.summary}.",
        f"  formula   {measure.formula}",
        f"  unit      {measure.unit}, {measure.bounds}",
        f"  average   over {measure.rows}",
        "  baseline  the same on even attention, 1/n_i on each of the n_i open keys",
        *([f"  needs     {' and '.join(needs)}"] if needs else []),
        f"  source    {measure.source}",
    ]
    return "\n".join(lines)


def _weighing(name: str) -> str:
    explained = WEIGHINGS.get(name) or METHODS.get(name)
    if explained is None:
        return ""
    option = f"--weigh {name}" if name in WEIGHINGS else f"flow --method {name}"
    said = f"a cell is the share {explained.share}" if name in WEIGHINGS else explained.share
    alone = name in ("rollout", "flow")
    lines = [
        f"{name} ({option}): {said}.",
        f"  formula   {explained.formula}",
        "  unit      share of a row; a row sums to 1, so that measures and baselines mean the same",
        f"  needs     {'weights alone' if alone else 'the model itself: no file keeps the values'}",
        f"  source    {explained.source}",
    ]
    return "\n".join(lines)
