"""What watching a training costs: steps that are watched, and steps that are not, to plain steps.

    python -m tests.benchmarks.watching --tokens 128 512

A random model of GPT-2-small's layers learns one batch on one thread; a step is a forward and a backward pass
and one of AdamW. Plain and watched steps take turns, each in processor time; medians over the rounds. A step
that is not watched calls one Python function more, whose own time is measured alone: it is far below what
steps differ by.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable

import torch

import attnscope
from tests.benchmarks.turns import asked_for, cost

WIDTH, HEADS, WORDS = 768, 12, 5000


def steps(tokens: int, batch: int, layers: int) -> tuple[torch.nn.Module, Callable[[], None]]:
    """A model in training, and what makes one step of it."""
    import transformers as hf

    config = hf.GPT2Config(
        n_embd=WIDTH, n_layer=layers, n_head=HEADS, n_positions=tokens, vocab_size=WORDS, use_cache=False
    )
    model = hf.GPT2LMHeadModel(config).train()
    ids = torch.randint(0, WORDS, (batch, tokens))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def unwatched_call() -> float:
    """Seconds that a call of a module takes more while a log counts it and measures nothing."""
    module, given, calls = torch.nn.Identity().train(), torch.ones(1), 20_000

    def run() -> None:
        for _ in range(calls):
            module(given)

    plain = min(cost(run) for _ in range(5))
    with attnscope.watch(module, every=10**9) as log:
        log.step = 0
        watched = min(cost(run) for _ in range(5))
    return (watched - plain) / calls


def main() -> None:
    """Print a table."""
    parser = asked_for(__doc__, [128, 512], layers=2, rounds=5)
    parser.add_argument("--batch", type=int, default=4)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    more = unwatched_call()
    print("| tokens | a watched step, in plain steps | another step adds |")
    print("|---|---|---|")
    for tokens in asked.tokens:
        model, step = steps(tokens, asked.batch, asked.layers)
        plain, watched = [], []
        for _ in range(asked.rounds + 1):
            plain.append(cost(step))
            with attnscope.watch(model, every=1):
                watched.append(cost(step))
        usual = statistics.median(plain[1:])
        share = statistics.median(watched[1:]) / usual
        print(f"| {tokens:,} | {share:.2f} | {more / usual:.5%} ({1e6 * more:.1f} µs) |", flush=True)


if __name__ == "__main__":
    main()
