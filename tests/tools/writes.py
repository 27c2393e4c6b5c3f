"""Whether the contributions of all parts sum to the score of a word, and the terms of a head's score to that.

``python -m tests.tools.writes --table tests/tools/writes.md``: a tiny random model of every type that
``AutoModelForCausalLM`` knows, its biases and norms moved away from 0 and 1.
"""

import re
from collections import defaultdict
from functools import partial
from itertools import product
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from attnscope.capture import recording
from attnscope.capture.effects import Effects, sum_parts
from attnscope.capture.stream import Lost, Stream, StreamRows
from attnscope.capture.summands import StreamStates, summands_of
from attnscope.questions.score_terms import scale_of, shared_by
from tests.tools.coverage.recipes import RECIPES, Recipe, accepted
from tests.tools.coverage.shrink import build, feedings, small_config
from tests.tools.survey import Row, first_line, report, survey

AT, NEAR = 5, 1e-4
NO_ATTENTION = "no attention"
ROUNDING = re.compile(r"\d+e[-+]\d+")
CHANGES = {"reformer": {"is_decoder": True}}


def built(model_type: str) -> tuple[Any, Any]:
    """A tiny causal model and inputs that it runs on; or None, and why not."""
    name = CLASSES[model_type] if isinstance(CLASSES[model_type], str) else CLASSES[model_type][0]
    recipe, failures = RECIPES.get(model_type, Recipe()), list[str]()
    changes = recipe.changes | CHANGES.get(model_type, {})
    for factor, part in product(recipe.factors, ("whole", "text")):
        try:
            config = small_config(model_type, factor, recipe.layers, changes)
            config = config.get_text_config(decoder=True) if part == "text" else config
            if hasattr(config, "is_decoder") and not getattr(config, "is_encoder_decoder", False):
                config.is_decoder = True
            model = build(getattr(transformers, name), config, recipe.gain)
            if given := accepted(model, feedings(model), failures):
                return model, given
        except Exception as error:
            failures.append(first_line(error))
    return None, (failures or ["no inputs are known for it"])[0]


def one_text(given: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
    """The ids of the first text, and its inputs."""
    ids = given.get("input_ids", given.get("decoder_input_ids"))
    texts = len(ids)
    return ids[:1], {
        key: value[:1] if isinstance(value, torch.Tensor) and value.ndim and len(value) == texts else value
        for key, value in given.items()
    }


def follow(model: Any, given: dict[str, Any]) -> tuple[Effects, float]:
    """The effects of all parts on the likeliest token's score, and the score."""
    ids, given = one_text(given)
    rows = StreamRows(length=ids.shape[1], at=AT)
    with torch.enable_grad(), rows.watching(model), recording(model, [rows], warn=False):
        logits = model(**given).logits[:1, AT]
    chosen = int(logits.argmax())
    seed = torch.zeros_like(logits)
    seed[0, chosen] = 1
    with torch.no_grad():
        stream = Stream((logits.grad_fn, logits.output_nr), rows)
        return sum_parts(stream, stream.walk(seed)), float(logits[0, chosen].detach())


def explain(model: Any, given: dict[str, Any]) -> str:
    """How far the terms of the last head's scores are from query times key, or why there are none."""
    ids, given = one_text(given)
    states = StreamStates(length=ids.shape[1])
    with torch.enable_grad(), states.watching(model), recording(model, [states], warn=False):
        model(**given)
    if not states.attentions:
        return NO_ATTENTION
    site = list(states.attentions)[-1]
    call = states.call(site)
    if call is None:
        return "its queries and keys are not known"
    head = call.query.shape[1] - 1
    sides = ((call.query, head), (call.key, head // shared_by(call)))
    try:
        parts = [summands_of(states, side, which, torch.eye(side.shape[2])) for side, which in sides]
    except Lost as lost:
        return str(lost)
    query, key = (sum(each.vectors.values()) for each in parts)
    scores = query @ key.mT * scale_of(call, head)
    expected = call.query[0, head].double() @ call.key[0, head // shared_by(call)].double().mT
    expected *= scale_of(call, head)
    gap = float((scores - expected).detach().abs().amax() / expected.detach().abs().amax())
    return f"{gap:.0e}" if gap <= NEAR else f"the terms are {gap:.0e} away from query times key"


def moved(model_type: str) -> tuple[Any, Any]:
    """A tiny model whose biases and norms are not 0 and 1, and its inputs; or None, and why not."""
    torch.manual_seed(0)
    model, given = built(model_type)
    with torch.no_grad():
        for weights in () if model is None else model.parameters():
            if weights.ndim == 1 and weights.is_floating_point():
                weights.add_(0.1 * torch.randn_like(weights))
    return model, given


def try_type(model_type: str) -> tuple[str, str]:
    """What became of one type: built or not, followed or not, and a sentence."""
    model, given = moved(model_type)
    if model is None:
        return "not built", given
    try:
        effects, score = follow(model, given)
    except Lost as lost:
        return "not followed", str(lost)
    gap = abs(effects.total - score) / max(1.0, effects.size)
    if not gap <= NEAR:
        return "not followed", f"the parts sum to {effects.total:.4g}, the score is {score:.4g}"
    some = {
        "other mixers": {layer for layer, _ in effects.mixers},
        "heads not separable": effects.mixed,
        "heads read by other parts alone": effects.silent,
    }
    told = [f"{what} in layers {sorted(layers)}" for what, layers in some.items() if layers]
    return "followed" if effects.heads else "no heads", ", ".join([f"{gap:.0e}", *told])


def try_terms(model_type: str) -> str:
    """What became of the terms of one type; empty if it was not built."""
    model, given = moved(model_type)
    return "" if model is None else explain(model, given)


def table(rows: list[Row]) -> str:
    """Counts, the types that are followed, and the others with their reasons."""
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        what, why = row.get("said") or ("not followed", row["note"])
        kinds[what][row["name"]] = why
    followed, lost = kinds["followed"], kinds["not followed"]
    ran = len(rows) - len(kinds["not built"])
    sums = len(followed) + len(kinds["no heads"])
    counts = {
        "causal types": len(rows),
        "built and run here": ran,
        "of those, **the parts sum to the score**": f"**{sums} ({sums / max(1, ran):.1%})**",
        "of those, without separable heads (only other mixers)": len(kinds["no heads"]),
        "not followed": len(lost),
    }
    terms = {row["name"]: row.get("terms", "") for row in rows}
    seen = {name: why for name, why in terms.items() if why not in ("", NO_ATTENTION)}
    lacking = {name: why for name, why in seen.items() if not ROUNDING.fullmatch(why)}
    summed = len(seen) - len(lacking)
    counts["with attention"] = len(seen)
    share = f"**{summed} ({summed / max(1, len(seen)):.1%})**"
    counts["of those, **the terms of a head's score sum to it** (`why`)"] = share
    shown = {row["name"]: (followed | kinds["no heads"]).get(row["name"], "") for row in rows}
    some = {name: why.partition(", ")[2] for name, why in shown.items() if ", " in why}
    says = {"Not followed": lost, "Scores without terms": lacking, "Not built here": kinds["not built"]}
    says["Followed, with a remark"] = some
    whole = [f"`{name}`" for name, why in followed.items() if "," not in why]
    return report("writes", counts, says, [f"## Followed completely ({len(whole)})", "", ", ".join(whole)])


if __name__ == "__main__":
    work = {"said": try_type, "terms": try_terms}
    survey(
        "writes", partial(sorted, CLASSES), lambda name: {key: do(name) for key, do in work.items()}, table
    )
