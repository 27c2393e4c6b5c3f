"""What weighing costs: looks at one head, and flows, to the plain forward pass of the same text.

    python -m tests.benchmarks.weighing --tokens 512 2048

A random model of GPT-2-small's layers on one text and one thread. A way may take one forward and one backward
pass more than the look at the weights themselves, and rows; its peak memory beyond the loaded model is in MB,
beside that of all heads' weights, which nobody should keep. The ways take turns, and each is timed in
processor time; medians over the rounds. Through all layers, ALTI makes a vector of every row and key.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from typing import get_args

from tests.benchmarks.turns import HEADS, asked_for, peak, print_peak, save_gpt2, take_turns


def ways(folder: str, tokens: int) -> dict[str, Callable[[], object]]:
    """Each way of looking, the plain passes first."""
    import torch

    from attnscope.figures import Weigh
    from attnscope.models import load
    from attnscope.models.targets import score_prediction
    from attnscope.models.weighed import weigh_model
    from attnscope.questions.flow import follow_flow
    from attnscope.questions.head import one_head
    from attnscope.questions.selection import Selection

    model = load(folder, predicting=True)
    prepared = model.prepare(
        "The cat sat on the mat because it was tired. " * tokens, max_tokens=tokens, truncate=True
    )

    def forward() -> None:
        with torch.inference_mode():
            model.module(**prepared.inputs, **prepared.settings)

    def both() -> None:
        weights = model.module.h[0].attn.c_proj.weight
        torch.autograd.grad(score_prediction(model, prepared, None).score, weights)

    def weighed(weigh: Weigh) -> Callable[[], object]:
        shown = model if weigh == "raw" else weigh_model(model, weigh)
        return lambda: one_head(shown, prepared, "L1H1")

    looks = {f"--weigh {weigh}": weighed(weigh) for weigh in get_args(Weigh)}
    flows = {
        f"flow {method}": lambda method=method: follow_flow(model, prepared, method, Selection())
        for method in ("rollout", "relevance", "alti")
    }
    return {"forward pass": forward, "forward and backward": both} | looks | flows


def main() -> None:
    """Print a table."""
    parser = asked_for(__doc__, [512, 2048], layers=2, rounds=3)
    parser.add_argument("--without", nargs="*", default=[], help="ways to leave out")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peak:
        folder, way = asked.peak
        run = ways(folder, asked.tokens[0])[way]
        ways(folder, 16)["forward and backward"]()  # what torch loads with its first passes
        return print_peak(run)
    print("| tokens | way | time, in forward passes | peak memory, MB | all heads' weights, MB |")
    print("|---|---|---|---|---|")
    for tokens in asked.tokens:
        with tempfile.TemporaryDirectory() as folder:
            name = save_gpt2(folder, tokens, asked.layers)
            runs = {way: run for way, run in ways(name, tokens).items() if way not in asked.without}
            times = {way: statistics.median(taken) for way, taken in take_turns(runs, asked.rounds).items()}
            whole = asked.layers * HEADS * tokens**2 * 4 / 2**20
            for way in runs:
                share = times[way] / times["forward pass"]
                used = peak("tests.benchmarks.weighing", "--peak", name, way, "--tokens", tokens)
                print(f"| {tokens:,} | {way} | {share:.2f} | {used:,.0f} | {whole:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
