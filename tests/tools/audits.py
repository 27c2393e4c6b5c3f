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

HEAD = """# What audits say

Made by `python -m tests.tools.audits`: `attnscope info --audit` of a tiny random model of every
type that transformers registers (5.24), with the models and inputs of the table of coverage, and at
least a minute of work for each. Every alarm of a type with attention that names no way was looked into
in the model's own source (below).
"""

THIRTY = """albert bart bert bloom camembert clip deberta-v2 distilbert electra falcon gemma2 gpt2
gpt_neo gpt_neox gpt_oss llama marian mistral mixtral modernbert mpnet mpt opt pegasus phi3 qwen2 roberta
t5 vit xlnet"""
"""Types of which each attention layer is taken out of the capture once, by hand: the audit must name it."""

KNOWN = {
    "blt": "embeddings of hashes over neighbouring bytes, added to those of the bytes",
    "decision_transformer": "the return, the state and the action of one step meet in a sum",
    "fun_asr_nano_encoder": "a memory of past states beside the attention, summed by hand",
    "glpn": "as segformer",
    "granite_docling_vision": "several patches are put side by side to become one token",
    "informer": "the values at several lags are put side by side, and scaled by their mean over time",
    "inkling2": "keys, values and what each half of a layer adds pass short convolutions",
    "inkling2_text": "as inkling2",
    "instructblip": "another id in the place of an image's own moves where its patches are put",
    "mm-grounding-dino": "as grounding-dino, audited later: the parts that score highest are chosen",
    "llama4_vision_model": "four patches become one",
    "mobilebert": "the embeddings of three neighbours are put side by side",
    "owlv2": "another id moves which token counts as the end of the text: the one with the largest id",
    "owlv2_text_model": "as owlv2",
    "owlvit": "as owlv2",
    "owlvit_text_model": "as owlv2",
    "parakeet_rnnt": "each frame of the sound is added to each token of the text",
    "parakeet_tdt": "as parakeet_rnnt",
    "patchtst": "all values are scaled by their mean and deviation over time",
    "qwen2_5_omni_audio_encoder": "two frames become one",
    "sam": "masks are products of the states of two streams",
    "sam2": "as sam; why norms and projections of its mask decoder are named, which mix nothing, is open",
    "sam3_lite_text_text_model": "as owlv2",
    "sam3_tracker": "masks are products of the states of two streams",
    "segformer": "the feed-forward network of each layer holds a convolution over neighbours",
    "time_series_transformer": "as informer",
    "timesfm": "values are scaled by the first patch that has enough of them",
    "timesfm2_5": "values are scaled by what came before them",
    "tipsv2_text_model": "the mean over the tokens that are not padded",
    "tvp": "frames are averaged",
    "uvdoc_backbone": "a sum of two convolutions that give one place to different pixels",
    "video_llama_3_vision": "four patches are averaged to one",
    "voxtral_realtime": "four frames are put side by side, and added to a token of the text",
    "wavtokenizer": "group norms take in all of time, and the last layer adds frames that overlap",
    "xclip": "as owlv2; frames are averaged",
    "xclip_text_model": "as owlv2",
}
"""What is behind mixing, where the name of its way is not enough."""

REFUSED = {
    "lightglue": " (how many points it finds depends on the picture, so that another one has other shapes)",
    "superglue": " (as lightglue)",
}
"""Why an audit of a type ends in an error."""


def audit_type(model_type: str, removed: bool = False) -> dict[str, Any]:
    """What an audit says of one type: its sentences, and how many attention calls were held.

    ``removed``: and whether it names each captured layer that is taken out of the capture.
    """
    from attnscope.models import ModelInput
    from attnscope.questions.audit import audit
    from tests.questions.test_audit import Bare, missing

    failures: list[str] = []
    made = make(model_type, failures)
    if made is None:
        return {"note": failures[0] if failures else "no inputs are known for it"}
    model, _, given = made
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
        "of those, something else mixes as well, which is named": len(attending) - len(whole),
        "types with each layer taken out of the capture once": len(missed),
        "of those, just that layer is named, each time": sum(map(all, missed)),
        "layers taken out, and named exactly": f"{sum(map(len, missed))}, {sum(map(sum, missed))}",
        "without any attention, their mixers named": len(bare),
    }
    by_alarm, by_types = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for result in audited:
        for alarm in result["alarms"]:
            by_alarm[alarm].append(result["name"])
    for alarm, types in by_alarm.items():
        by_types["`, `".join(types)].append(alarm)
    named = {result["name"] for result in attending if result["alarms"]}
    says = {
        "What mixes tokens as well": {types: "; ".join(alarms) for types, alarms in by_types.items()},
        "What is behind some of them": {name: why for name, why in KNOWN.items() if name in named},
        "Not audited": {
            result["name"]: result["note"] + REFUSED.get(result["name"], "")
            for result in results
            if "note" in result
        },
    }
    return report(HEAD, counts, says)


def main() -> None:
    """Audit the types that are named, or all, in an order in which a part of them is a sample."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    types = list(CONFIG_MAPPING_NAMES)
    random.Random(0).shuffle(types)
    survey("audits", lambda: types, lambda name: audit_type(name, name in THIRTY.split()), table, seconds=30)


if __name__ == "__main__":
    main()
