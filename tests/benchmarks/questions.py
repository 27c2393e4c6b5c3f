"""What questions cost: ``find`` and ``spans`` over the pass that they are asked in.

    python -m tests.benchmarks.questions --tokens 512 2048

A random model of GPT-2-small's layers, on one text and one thread: the model's pass with nothing to observe,
the same with one question about two words, and with all heads' attention between ten parts of the text. The
ways take turns, and each is timed in processor time; the shares are medians over the rounds. The aim is 5 %
each. The last column is ``find "* -> -1"``, which asks all rows, ranks included, as a ratio to ``stats``: at
most 1.3. ``--all-rows`` measures that alone, for long texts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from tests.benchmarks.turns import asked_for, ratio, save_gpt2, take_turns

SENTENCE = "The cat sat on the mat because it was tired. "


def measure(tokens: int, layers: int, rounds: int, alone: bool) -> dict[str, float]:
    """The share of each way in the processor time of the pass."""
    from attnscope.models import load
    from attnscope.questions.find import find_heads, parse_questions
    from attnscope.questions.parts import Span
    from attnscope.questions.selection import Selection
    from attnscope.questions.spans import span_maps
    from attnscope.questions.stats import measure_heads

    with tempfile.TemporaryDirectory() as folder:
        model = load(save_gpt2(folder, tokens, layers))
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
    times = take_turns(ways, rounds)
    shares = {name: ratio(times, name, "pass") - 1 for name in list(ways)[1:-2]}
    return {**shares, "all rows": ratio(times, "all rows", "stats")}


def main() -> None:
    """Print a table."""
    parser = asked_for(__doc__, [512, 2048], layers=12, rounds=7)
    parser.add_argument("--all-rows", action="store_true")
    asked = parser.parse_args()
    names = () if asked.all_rows else ("find", "spans", "spans --exact-kernel")
    print("| tokens | " + " | ".join((*names, "* -> -1")) + " |\n" + "|---" * (len(names) + 2) + "|")
    for tokens in asked.tokens:
        shares = measure(tokens, asked.layers, asked.rounds, asked.all_rows)
        ratio = f"{shares.pop('all rows'):.2f}"
        cells = [f"{tokens:,}", *(f"{share:.1%}" for share in shares.values()), ratio]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
