"""A model learns induction under a watch: log, checkpoints and a script agree on the step."""

import json
import random
import sys
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from tests.tools.readme import ROOT

EVERY, STEPS, HALF = 25, 300, 14


def learn(folder):
    """Train it on words that come twice; ``probe.txt`` holds eight such texts, in which no word comes thrice.

    The checkpoint of a step has the weights with which that step begins, those that are watched.
    """
    sys.path.insert(0, str(ROOT / "sample_inputs"))
    try:
        import tutorial_models
    finally:
        sys.path.pop(0)
    words, draw = tutorial_models.WORDS, random.Random(5)
    texts = [" ".join(draw.sample(words, HALF) * 2) for _ in range(8)]
    (folder / "probe.txt").write_text("\n".join(texts))
    tokenizer = tutorial_models.tokenizer_of(words)
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(words) + 1, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=1, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config).train()
    for layer in model.model.layers:  # attention alone
        layer.mlp.down_proj.weight.requires_grad_(False).zero_()

    def save(scores):
        model.save_pretrained(folder / f"checkpoint-{log.step}")
        tokenizer.save_pretrained(folder / f"checkpoint-{log.step}")

    probe = {"texts": folder / "probe.txt", "tokenizer": tokenizer, "measures": ["induction", "previous"]}
    quiet = redirect_stdout(StringIO())
    with attnscope.watch(model, every=EVERY, report=save, **probe) as log, quiet:
        tutorial_models.train(model, tutorial_models.repeated, STEPS)
    return log


SAVED = range(0, STEPS, EVERY)


def by_hand(folder):
    """The mean weight of each head on what stood behind the same word, by eager attention: [step, head]."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder / "checkpoint-0")
    ids = tokenizer((folder / "probe.txt").read_text().splitlines(), return_tensors="pt").input_ids
    rows, steps = torch.arange(HALF, 2 * HALF), []
    for step in SAVED:
        model = hf.AutoModelForCausalLM.from_pretrained(
            folder / f"checkpoint-{step}", attn_implementation="eager"
        )
        with torch.no_grad():
            layers = model(input_ids=ids, output_attentions=True).attentions
        weights = torch.cat(layers, 1)[:, :, rows, rows - HALF + 1]  # [text, head, row]
        steps.append(weights.double().mean((0, 2)).numpy())
    return np.array(steps), float((1 / (rows + 1.0)).mean())


@pytest.mark.nightly
@pytest.mark.slow
def test_induction_appears_at_same_step_in_log_and_checkpoints(tmp_path, run):
    log = learn(tmp_path)
    watched = {each.head: each for each in log.track.of("induction")}
    asked = ("track", tmp_path, "--texts", tmp_path / "probe.txt", "--measure", "induction", "--json")
    followed = {each["head"]: each for each in json.loads(run(*asked).out)["courses"]}
    scores, even = by_hand(tmp_path)
    head = next(iter(watched))  # what changed most
    number = ["L0H0", "L0H1", "L1H0", "L1H1"].index(head)
    course = (scores[:, number] - even) / (scores[-1, number] - even)
    appears = SAVED[max(np.flatnonzero(course < 0.5)) + 1]
    assert head.startswith("L1")
    assert scores[-1, number] > 3 * even
    assert 0 < appears < STEPS - EVERY
    for found in (watched[head].appears, followed[head]["appears"]):
        assert abs(found - appears) <= EVERY
    assert watched[head].values == pytest.approx(followed[head]["values"], abs=1e-6)
    assert watched[head].values == pytest.approx(scores[:, number].tolist(), abs=1e-5)
