"""Trains the small models of the two tutorials, each in less than half a minute on one core.

    python sample_inputs/tutorial_models.py induction induction-model
    python sample_inputs/tutorial_models.py gifts gifts-model

Each folder is a Hugging Face model with a tokenizer of whole words. The same seed gives the same model on the
same machine; another machine rounds otherwise, and may number its heads differently.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [
    "apple", "arrow", "autumn", "basket", "bell", "bird", "boat", "bottle", "branch", "bread", "bridge",
    "bucket", "candle", "carpet", "castle", "chair", "cherry", "clock", "cloud", "coat", "copper", "corner",
    "cotton", "cup", "desk", "door", "drum", "engine", "feather", "field", "fire", "flag", "flower",
    "forest", "garden", "glass", "gold", "hammer", "harbor", "hat", "hill", "horse", "island", "kettle",
    "key", "ladder", "lake", "lamp", "letter",
]  # fmt: skip
NAMES = [
    "Mary", "John", "Anna", "Paul", "Clara", "Henry", "Ruth", "Simon", "Laura", "Peter", "Julia", "Frank",
]  # fmt: skip
GIFTS = ["book", "ring", "cake", "lamp", "coat", "map", "pen", "bell"]
SENTENCE = "When {one} and {other} met, {giver} gave the {gift} to {receiver}"

Batch = Callable[[random.Random], tuple[list[list[int]], int]]
"""Rows of token ids, and the number of the first token that is to be predicted."""


def tokenizer_of(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that knows these words whole, and no others."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, "[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]")


def repeated(generator: random.Random) -> tuple[list[list[int]], int]:
    """Random words twice; only the second time can they be told."""
    length = generator.randint(6, 20)
    halves = [[generator.randint(1, len(WORDS)) for _ in range(length)] for _ in range(32)]
    return [half * 2 for half in halves], length


def given(tokenizer: PreTrainedTokenizerFast, generator: random.Random) -> tuple[list[list[int]], int]:
    """Two people meet, one gives, the other receives."""
    texts = []
    for _ in range(64):
        one, other = generator.sample(NAMES, 2)
        giver, receiver = generator.sample([one, other], 2)
        gift = generator.choice(GIFTS)
        texts.append(SENTENCE.format(one=one, other=other, giver=giver, receiver=receiver, gift=gift))
    return tokenizer(texts)["input_ids"], 1


def train(model: LlamaForCausalLM, batch: Batch, steps: int, rate: float = 3e-3) -> None:
    """Predict each next token, from the first that is asked for on."""
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer, generator = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01), random.Random(0)
    for step in range(steps):
        rows, first = batch(generator)
        ids = torch.tensor(rows)
        logits = model(ids).logits[:, first - 1 : -1]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, first:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / 50) * (1 - step / steps)
        optimizer.step()
    print(f"trained {steps:,} steps, loss {loss.item():.3f}")


def make(name: str, folder: Path) -> None:
    """Train one of the two models and save it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    alone = name == "induction"
    words = WORDS if alone else [*["When", "and", "met", ",", "gave", "the", "to"], *NAMES, *GIFTS]
    tokenizer = tokenizer_of(words)
    config = LlamaConfig(
        vocab_size=len(words) + 1, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=1 if alone else 128, max_position_embeddings=64, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if alone:  # attention alone: what stands between the layers adds nothing, and never will
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.requires_grad_(False).zero_()
        train(model, repeated, steps=800)
    else:
        train(model, partial(given, tokenizer), steps=500)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
