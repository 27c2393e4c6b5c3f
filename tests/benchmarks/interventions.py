"""What changing every head costs, over as many plain passes: a random GPT-2 of full size.

``python -m tests.benchmarks.interventions``: processor time on one thread, and the memory at its peak.
``--heads N`` changes the first N heads alone, to see whether memory grows with them.
"""

from __future__ import annotations

import argparse
import resource
import tempfile

import torch

from attnscope.attention import Head
from attnscope.models import load
from attnscope.questions.cause import cut
from attnscope.questions.find import parse_questions
from attnscope.questions.patching import TextPair, patch
from tests.benchmarks.turns import HEADS, cost, save_gpt2

TOKENS, LAYERS = 128, 12


def main() -> None:
    """Measure, and print ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=LAYERS * HEADS)
    count = parser.parse_args().heads
    torch.set_num_threads(1)
    heads = [Head(each // HEADS, each % HEADS) for each in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        model = load(save_gpt2(folder, TOKENS, LAYERS), predicting=True)
    text = "a" * TOKENS
    clean, corrupt = model.prepare(text), model.prepare(text.replace("a", "b", 1))
    tokens = len(clean.tokens)
    assert tokens == len(corrupt.tokens) == TOKENS

    def run() -> None:
        with torch.no_grad():
            model.writer(**clean.inputs)

    run()
    plain = min(cost(run) for _ in range(5))
    pairs, edge = [TextPair(clean, corrupt)], parse_questions("* -> -1")
    for name, work, passes in (
        ("cut, every head alone and all at once", lambda: cut(model, clean, edge, heads=heads), count),
        ("patch, every head alone and all at once", lambda: patch(model, pairs, heads=heads), count),
        ("patch --fast", lambda: patch(model, pairs, heads=heads, fast=True), 4),
    ):
        print(f"{name}: {cost(work) / plain / passes:.2f} of {passes} plain passes of {tokens} tokens")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"peak memory with {count} heads: {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
