"""Whether the contributions of all parts sum to the score, in every causal family of transformers.

``python -m tests.tools.writes --table tests/tools/writes.md``: a tiny random model of every type that
``AutoModelForCausalLM`` knows, its biases and norms moved away from 0 and 1.
"""

from collections import defaultdict
from itertools import product
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from attnscope.capture import recording
from attnscope.capture.stream import Effects, Lost, Stream, StreamRows, sum_parts
from tests.tools.coverage.recipes import RECIPES, Recipe, accepted
from tests.tools.coverage.shrink import build, feedings, small_config
from tests.tools.survey import Row, first_line, report, survey

AT, NEAR = 5, 1e-4
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


def follow(model: Any, given: dict[str, Any]) -> tuple[Effects, float]:
    """The effects of all parts on the likeliest token's score, and the score."""
    ids = given.get("input_ids", given.get("decoder_input_ids"))
    texts = len(ids)
    given = {
        key: value[:1] if isinstance(value, torch.Tensor) and value.ndim and len(value) == texts else value
        for key, value in given.items()
    }
    rows = StreamRows(length=ids.shape[1], at=AT)
    with torch.enable_grad(), rows.watching(model), recording(model, [rows], warn=False):
        logits = model(**given).logits[:1, AT]
    chosen = int(logits.argmax())
    seed = torch.zeros_like(logits)
    seed[0, chosen] = 1
    with torch.no_grad():
        stream = Stream((logits.grad_fn, logits.output_nr), rows)
        return sum_parts(stream, stream.walk(seed)), float(logits[0, chosen].detach())


def try_type(model_type: str) -> tuple[str, str]:
    """What became of one type: built or not, followed or not, and a sentence."""
    torch.manual_seed(0)
    model, given = built(model_type)
    if model is None:
        return "not built", given
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 1 and weights.is_floating_point():
                weights.add_(0.1 * torch.randn_like(weights))
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
    shown = {row["name"]: (followed | kinds["no heads"]).get(row["name"], "") for row in rows}
    some = {name: why.partition(", ")[2] for name, why in shown.items() if ", " in why}
    says = {"Not followed": lost, "Not built here": kinds["not built"]}
    says["Followed, with a remark"] = some
    whole = [f"`{name}`" for name, why in followed.items() if "," not in why]
    return report("writes", counts, says, [f"## Followed completely ({len(whole)})", "", ", ".join(whole)])


if __name__ == "__main__":
    survey("writes", lambda: sorted(CLASSES), lambda name: {"said": try_type(name)}, table)
