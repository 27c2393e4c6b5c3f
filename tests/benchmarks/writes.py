"""What it costs to say what every part writes to a score, over the plain pass: a random GPT-2 of full size.

``python -m tests.benchmarks.writes``: processor time on one thread, the best of three.
"""

from __future__ import annotations

import torch
import transformers as hf

from attnscope.capture import recording
from attnscope.capture.stream.parts import sum_parts
from attnscope.capture.stream.walk import Stream, StreamRows
from tests.benchmarks.turns import cost

TOKENS = 256


def main() -> None:
    """Measure, and print ratios."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config()).eval()
    ids = torch.randint(0, 50_000, (1, TOKENS))

    @torch.inference_mode()
    def run() -> None:
        model(input_ids=ids)

    def learn() -> None:
        model(input_ids=ids).logits[0, -1].max().backward()
        model.zero_grad()

    def follow(words: int) -> None:
        rows = StreamRows(length=TOKENS, at=TOKENS - 1)
        with torch.enable_grad(), rows.watching(model), recording(model, [rows], warn=False):
            logits = model(input_ids=ids).logits[:1, -1]
        seed = torch.zeros_like(logits)
        seed[0, int(logits.argmax())] = 1
        seed.requires_grad_(True)
        with torch.enable_grad():
            stream = Stream((logits.grad_fn, logits.output_nr), rows)
            effects = sum_parts(stream, stream.walk(seed))
        for head in effects.largest_heads(words):
            effects.slopes(head, seed)

    plain, learnt, followed, words = (
        min(cost(work) for _ in range(3)) for work in (run, learn, lambda: follow(0), lambda: follow(5))
    )
    print(f"forward and backward  {learnt / plain:.2f} of the plain pass of {TOKENS} tokens")
    print(f"logits                {followed / plain:.2f}")
    print(f"with five heads' words {words / plain:.2f}")


if __name__ == "__main__":
    main()
