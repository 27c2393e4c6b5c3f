"""Audit a tiny random model of every model type that transformers registers, and print a table.

``python -m tests.tools.audits --table tests/tools/audits.md``
"""

import random
from collections import defaultdict
from typing import Any

import torch

from attnscope.attention import Token
from tests.tools.coverage.recipes import make
from tests.tools.survey import report, survey

THIRTY = """albert bart bert bloom camembert clip deberta-v2 distilbert electra falcon gemma2 gpt2
gpt_neo gpt_neox gpt_oss llama marian mistral mixtral modernbert mpnet mpt opt pegasus phi3 qwen2 roberta
t5 vit xlnet"""
"""Types of which each attention layer is taken out of the capture once, by hand: the audit must name it."""


def audit_type(model_type: str, removed: bool = False) -> dict[str, Any]:
    """What an audit says of one type: its sentences, and how many attention calls were held.

    ``removed``: and whether it names each captured layer that is taken out of the capture.
    """
    from attnscope.models import ModelInput
    from attnscope.questions.audit import audit
    from tests.questions.test_audit import Bare, missing

    failures: list[str] = []
    model, _, given = make(model_type, failures)
    if given is None:
        return {"note": failures[0] if failures else "no inputs are known for it"}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    settings = {name: value for name, value in given.items() if name not in tensors}
    prepared, missed = ModelInput(tensors, {}, label(model, tensors), settings=settings), []
    seen = audit(Bare(model), prepared)
    for site in seen.sites if removed else ():
        with missing(site.name):
            mixers = audit(Bare(model), prepared).mixers
        missed.append([mixer.path for mixer in mixers] == [site.name])
    return {"calls": len(seen.sites), "alarms": [] if seen.complete else seen.sentences, "missed": missed}


def label(model: Any, tensors: dict[str, torch.Tensor]) -> tuple[Token, ...]:
    """The tokens of a text; ids with a part to play in the config are special, as a tokenizer would say."""
    ids = tensors.get("input_ids")
    if ids is None or ids.ndim != 2:
        return ()
    named = [config for config in (model.config, *vars(model.config).values()) if hasattr(config, "to_dict")]
    special = {
        value
        for config in named
        for name, value in vars(config).items()
        if isinstance(value, int) and name.endswith(("token_id", "token_index"))
    }
    return tuple(Token(str(each), each, special=each in special) for each in ids[0].tolist())


def table(results: list[dict[str, Any]]) -> str:
    """Counts, and the types of each alarm."""
    audited = [result for result in results if "calls" in result]
    attending = [result for result in audited if result["calls"]]
    whole = [result for result in attending if not result["alarms"]]
    missed = [result["missed"] for result in audited if result.get("missed")]
    bare = [result for result in audited if not result["calls"] and result["alarms"]]
    counts = {
        "types tried": len(results),
        "built and audited": len(audited),
        "of those, with attention that is shown": len(attending),
        "of those, all mixing goes through it": len(whole),
        "of those, something else also mixes tokens, and is named": len(attending) - len(whole),
        "types audited with each layer hidden from capture in turn": len(missed),
        "of those, exactly that layer is named each time": sum(map(all, missed)),
        "layers hidden, and named exactly": f"{sum(map(len, missed))}, {sum(map(sum, missed))}",
        "without attention, with their mixers named": len(bare),
    }
    by_alarm, by_types = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for result in audited:
        for alarm in result["alarms"]:
            by_alarm[alarm].append(result["name"])
    for alarm, types in by_alarm.items():
        by_types["`, `".join(types)].append(alarm)
    says = {
        "What else mixes tokens": {types: "; ".join(alarms) for types, alarms in by_types.items()},
        "Not audited": {result["name"]: result["note"] for result in results if "note" in result},
    }
    return report("audits", counts, says)


def main() -> None:
    """Audit the types that are named, or all, in an order in which a part of them is a sample."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    types = list(CONFIG_MAPPING_NAMES)
    random.Random(0).shuffle(types)
    survey("audits", lambda: types, lambda name: audit_type(name, name in THIRTY.split()), table, seconds=30)


if __name__ == "__main__":
    main()
