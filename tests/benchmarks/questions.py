"""What questions cost: ``find`` and ``spans`` over the pass that they are asked in.

    python -m tests.benchmarks.questions --tokens 512 2048

A random model of GPT-2-small's layers, on one text and one thread: the model's pass with nothing to observe,
the same with one question about two words, and with all heads' attention between ten parts of the text. The
ways take turns, and each is timed in processor time; the shares are medians over the rounds. The aim is 5 %
each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SENTENCE = "The cat sat on the mat because it was tired. "


def measure(tokens: int, layers: int, rounds: int) -> dict[str, float]:
    """The share of each way in the processor time of the pass."""
    from attnscope.models import load
    from attnscope.questions.find import find_heads, parse_questions
    from attnscope.questions.parts import Span
    from attnscope.questions.spans import span_maps
    from tests.models.folders import gpt2

    with tempfile.TemporaryDirectory() as folder:
        sizes = {"n_embd": 768, "n_head": 12, "n_layer": layers, "n_positions": tokens}
        model = load(gpt2(Path(folder) / "gpt2", **sizes))
    prepared = model.prepare(SENTENCE * tokens, max_tokens=tokens)
    edges = [tokens * part // 10 for part in range(11)]
    spans = [Span(f"{part}", *edges[part : part + 2]) for part in range(10)]
    asked = parse_questions("it#9 -> cat#2")
    ways: dict[str, Callable[[], object]] = {
        "pass": lambda: model.run(prepared, []),
        "find": lambda: find_heads(model, prepared, asked),
        "spans": lambda: span_maps(model, prepared, spans),
        "spans beside the kernel": lambda: span_maps(model, prepared, spans, exact_kernel=True),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            if round_:
                times[name].append(time.process_time() - start)
    shares = {}
    for name in list(ways)[1:]:
        pairs = zip(times[name], times["pass"], strict=True)
        shares[name] = statistics.median(taken / plain - 1 for taken, plain in pairs)
    return shares


def main() -> None:
    """Print a table."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| tokens | find | spans | spans --exact-kernel |\n|---|---|---|---|")
    for tokens in asked.tokens:
        shares = measure(tokens, asked.layers, asked.rounds).values()
        print(f"| {tokens:,} | " + " | ".join(f"{share:.1%}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
