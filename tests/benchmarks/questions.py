"""What questions cost: ``find`` and ``spans`` over the pass that they are asked in.

    python -m tests.benchmarks.questions --tokens 512 2048

A random model of GPT-2-small's layers, on one text and one thread: the model's pass with nothing to observe,
the same with one question about two words, and with all heads' attention between ten parts of the text. The
ways take turns, and each is timed in processor time; the shares are medians over the rounds. The aim is 5 %
each. The last column is ``find "* -> -1"``, which asks all rows, ranks included, as a ratio to ``stats``: at
most 1.3. ``--all-rows`` measures that alone, for long texts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SENTENCE = "The cat sat on the mat because it was tired. "


def measure(tokens: int, layers: int, rounds: int, alone: bool) -> dict[str, float]:
    """The share of each way in the processor time of the pass."""
    from attnscope.models import load
    from attnscope.questions.find import find_heads, parse_questions
    from attnscope.questions.parts import Span
    from attnscope.questions.selection import Selection
    from attnscope.questions.spans import span_maps
    from attnscope.questions.stats import measure_heads
    from tests.models.folders import gpt2

    with tempfile.TemporaryDirectory() as folder:
        sizes = {"n_embd": 768, "n_head": 12, "n_layer": layers, "n_positions": tokens}
        model = load(gpt2(Path(folder) / "gpt2", **sizes))
    prepared = model.prepare(SENTENCE * (tokens // 8), max_tokens=tokens)
    edges = [tokens * part // 10 for part in range(11)]
    spans = [Span(f"{part}", *edges[part : part + 2]) for part in range(10)]
    asked = parse_questions("it#9 -> cat#2")
    ways: dict[str, Callable[[], object]] = {
        "pass": lambda: model.run(prepared, []),
        "find": lambda: find_heads(model, prepared, asked),
        "spans": lambda: span_maps(model, prepared, spans),
        "spans beside the kernel": lambda: span_maps(model, prepared, spans, exact_kernel=True),
        "stats": lambda: measure_heads(model, prepared, Selection()),
        "all rows": lambda: find_heads(model, prepared, parse_questions("* -> -1")),
    }
    if alone:
        ways = {name: ways[name] for name in ("stats", "all rows")}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            if round_:
                times[name].append(time.process_time() - start)
    shares = {}
    for name in list(ways)[1:-2]:
        pairs = zip(times[name], times["pass"], strict=True)
        shares[name] = statistics.median(taken / plain - 1 for taken, plain in pairs)
    pairs = zip(times["all rows"], times["stats"], strict=True)
    return {**shares, "all rows": statistics.median(taken / plain for taken, plain in pairs)}


def main() -> None:
    """Print a table."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--all-rows", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = () if asked.all_rows else ("find", "spans", "spans --exact-kernel")
    print("| tokens | " + " | ".join((*names, "* -> -1")) + " |\n" + "|---" * (len(names) + 2) + "|")
    for tokens in asked.tokens:
        shares = measure(tokens, asked.layers, asked.rounds, asked.all_rows)
        ratio = f"{shares.pop('all rows'):.2f}"
        cells = [f"{tokens:,}", *(f"{share:.1%}" for share in shares.values()), ratio]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
