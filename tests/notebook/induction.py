"""The model of the induction tutorial, watched while it learns, with its checkpoints beside it."""

import random
import sys
from contextlib import redirect_stdout
from io import StringIO

import torch
import transformers as hf

import attnscope
from tests.tools.readme import ROOT

EVERY, STEPS, HALF = 25, 400, 14


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

    def save(figures):
        model.save_pretrained(folder / f"checkpoint-{log.step}")
        tokenizer.save_pretrained(folder / f"checkpoint-{log.step}")

    probe = {"texts": folder / "probe.txt", "tokenizer": tokenizer, "measures": ["induction", "previous"]}
    quiet = redirect_stdout(StringIO())
    with attnscope.watch(model, every=EVERY, report=save, **probe) as log, quiet:
        tutorial_models.train(model, tutorial_models.repeated, STEPS)
    return log
