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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

HEADS = 12


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


def build(folder: Path, tokens: int, layers: int) -> str:
    """The folder of a random model, long enough for the text."""
    from tests.models.folders import gpt2

    return gpt2(folder, n_embd=64 * HEADS, n_layer=layers, n_head=HEADS, n_positions=tokens)


def peak(folder: str, tokens: int, way: str) -> float:
    """Megabytes that a way adds to the loaded model, in a process of its own (Linux only)."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.weighing",
        "--peak",
        folder,
        way,
        "--tokens",
        str(tokens),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ran.stdout.split()[-1])


def print_peak(folder: str, tokens: int, way: str) -> None:
    """Run one way, and print what its peak memory adds to the loaded model."""
    run = ways(folder, tokens)[way]
    ways(folder, 16)["forward and backward"]()  # what torch loads with its first passes
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # start the peak anew
    run()
    print((_status("VmHWM") - before) / 1024)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """Print a table."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], help="ways to leave out")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.peak:
        return print_peak(asked.peak[0], asked.tokens[0], asked.peak[1])
    print("| tokens | way | time, in forward passes | peak memory, MB | all heads' weights, MB |")
    print("|---|---|---|---|---|")
    for tokens in asked.tokens:
        with tempfile.TemporaryDirectory() as folder:
            name = build(Path(folder), tokens, asked.layers)
            runs = {way: run for way, run in ways(name, tokens).items() if way not in asked.without}
            times: dict[str, list[float]] = {way: [] for way in runs}
            for _ in range(asked.rounds + 1):
                for way, run in runs.items():
                    start = time.process_time()
                    run()
                    times[way].append(time.process_time() - start)
            plain = statistics.median(times["forward pass"][1:])
            whole = asked.layers * HEADS * tokens**2 * 4 / 2**20
            for way in runs:
                share, used = statistics.median(times[way][1:]) / plain, peak(name, tokens, way)
                print(f"| {tokens:,} | {way} | {share:.2f} | {used:,.0f} | {whole:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
