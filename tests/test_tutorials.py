"""The tutorials: nightly, their models are trained again, and every step gives the result on the page.

A tutorial is one test, so that its model is trained once, in one process.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import transformers

from tests.tools import readme
from tests.tools.tutorials.__main__ import GIFT, HERE, NAMES, OTHER, SAMPLES, SCORE, TRAINED, answer, render

FENCED = re.compile(r"```console.*?```", re.S)
ADDRESS = re.compile(r"\bL\d+H\d+\b")
WORDS = '"bell key lamp horse fire boat drum bell" -m induction-model --target key --against horse'
SWAPPED = '--with-text "lamp key bell horse fire boat drum bell"'


@pytest.fixture(autouse=True)
def uncached(monkeypatch) -> None:
    """A title that names the minute of a cached pass is no page's."""
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")


def train_and_compare(name: str, folder: Path) -> Mapping[str, str]:
    """Train a tutorial's model, hold its page to what the commands print, and return its heads."""
    page, heads = render(name, folder)
    committed = (SAMPLES / f"{name}.md").read_text("utf-8")
    if TRAINED.findall(page) == TRAINED.findall(committed):  # this machine rounds as that of the page did
        assert readme.difference(committed, page, share=0.01) is None
    words, theirs = (ADDRESS.sub("LXHX", FENCED.sub("", text)) for text in (page, committed))
    assert words == theirs, "write it anew: python -m tests.tools.tutorials"
    return heads


def by_head(command: str, folder: Path, score: str = "effect") -> dict[str, float]:
    """What a command says of each head; mostly, what the head does to the score."""
    heads = answer(f"attnscope {command}", folder)["heads"]
    return {"L{layer}H{head}".format(**each): each[score] for each in heads}


@pytest.mark.parametrize("name", NAMES)
def test_tutorial_page_matches_its_source_text_and_commands(name: str) -> None:
    page, text = (
        ADDRESS.sub("LXHX", (folder / f"{name}.md").read_text("utf-8")) for folder in (SAMPLES, HERE)
    )
    text = re.sub(r"\{\w+\}", "LXHX", text)
    assert FENCED.sub("", page) == FENCED.sub("", text), "write it anew: python -m tests.tools.tutorials"
    commands, ours = (re.findall(r"^\$ (.+)$", each, re.M) for each in (page, text))
    assert commands == ours


@pytest.mark.nightly
@pytest.mark.slow
def test_induction_tutorial_identifies_its_circuit(tmp_path) -> None:
    heads = train_and_compare("induction", tmp_path)
    looks, before = heads["induction"], heads["previous"]
    assert (looks[:2], before[:2]) == ("L1", "L0")

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "induction-model")
    assert all(not layer.mlp.down_proj.weight.any() for layer in model.model.layers)  # attention alone

    assert by_head("info induction-model --copying", tmp_path, "copies")[looks] > 0.9

    feeds = answer(f"attnscope compare {looks} --composition -m induction-model", tmp_path)["feeds"]
    best = max(feeds, key=lambda each: each["score"] - each["baseline"])
    assert ("L{layer}H{head}".format(**best["head"]), best["way"]) == (before, "K")

    for edge, needed in (("bell#2 -> key", looks), ("key -> bell", before)):
        lost = by_head(f'cut "{edge}" {WORDS}', tmp_path)
        assert min(lost, key=lost.__getitem__) == needed

    asked = f'why "bell#2 -> key" {WORDS.partition(" --target")[0]} --head {looks} --depth 2'
    named, earlier = answer(f"attnscope {asked}", tmp_path)["path"]
    assert (named["terms"][0]["query"], named["terms"][0]["key"]) == ("embeddings", before)
    assert ("L{layer}H{head}".format(**earlier), earlier["query"], earlier["key"]) == (
        before,
        "key 1",
        "bell 0",
    )
    assert earlier["link"]["carried"] > 0.8 * named["terms"][0]["value"]

    back = by_head(f"patch {SWAPPED} {WORDS}", tmp_path)
    assert {head for head, share in back.items() if share > 0.5} == {looks, before}
    asked = f"patch {SWAPPED} {WORDS} --head {before} --to {looks}"
    keys, queries = (by_head(f"{asked}:{way}", tmp_path)[before] for way in "kq")
    assert keys > 0.3
    assert abs(queries) < 0.05

    found = answer("attnscope circuit sample_inputs/induction.tsv -m induction-model", tmp_path)
    edges = {(each["source"], each["target"]): each["way"] for each in found["edges"]}
    assert edges[before, looks] == "K"
    assert (looks, "prediction") in edges
    assert 0.8 <= found["faithfulness"] <= 1.2


@pytest.mark.nightly
@pytest.mark.slow
def test_gifts_tutorial_identifies_inhibitor_and_name_heads(tmp_path) -> None:
    heads = train_and_compare("gifts", tmp_path)
    asked, inhibitor = f"-m gifts-model {SCORE}", heads["inhibitor"]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "gifts-model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "gifts-model")
    names = [name for name in tokenizer.get_vocab() if name.istitle() and name != "When"]
    met = [random.Random(number).sample(names, 2) for number in range(100)]
    texts = tokenizer([f"When {one} and {other} met, {one} gave the ring to" for one, other in met])
    with torch.no_grad():
        likeliest = model(torch.tensor(texts["input_ids"])).logits[:, -1].argmax(-1)
    told = tokenizer.convert_ids_to_tokens(likeliest.tolist())  # the one who does not give
    assert sum(name == other for name, (_, other) in zip(told, met, strict=True)) >= 95

    whole = answer(f'attnscope cut "to -> Mary#2" "{GIFT}" {asked}', tmp_path)["score"]
    assert by_head(f'cut "to -> Mary#2" "{GIFT}" {asked}', tmp_path)[inhibitor] < -0.8 * whole
    assert abs(by_head(f'cut "to -> John" "{GIFT}" {asked}', tmp_path)[inhibitor]) < 0.05 * whole
    assert by_head(f'patch "{GIFT}" --with-text "{OTHER}" {asked}', tmp_path)[inhibitor] > 0.8
    assert heads["names"] != inhibitor

    found = answer("attnscope circuit sample_inputs/gifts.tsv -m gifts-model", tmp_path)
    sources = {each["source"] for each in found["edges"]}
    assert (inhibitor in sources, heads["names"] in sources) == (True, False)
    assert 0.8 <= found["faithfulness"] <= 1.2
