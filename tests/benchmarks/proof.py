"""What the proof costs: a few rows of weights times values against the kernel's output, to the plain pass.

    python -m tests.benchmarks.proof --tokens 512 4096

A random model of GPT-2-small's, BERT-base's or torch's own layers, on one text and one thread: the plain
forward pass and the same pass watched take turns, each in processor time. What was spent inside of the proof
is counted apart, for a difference of two passes is less sure than the aim is small. The shares are medians
over the rounds. The aims are 3 % at 512 tokens and 1 % at 4,096.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack, nullcontext
from unittest.mock import patch

from tests.benchmarks.turns import asked_for

PLACES = ("capture", "kernels")
"""The files of ``attnscope.capture.rows`` that call for the proof."""


def build(shape: str, tokens: int, layers: int):
    """A random model, long enough for the text."""
    import torch
    import transformers as hf
    from torch import nn

    torch.manual_seed(0)
    if shape == "torch":
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
        return nn.TransformerEncoder(layer, layers).eval(), torch.randn(1, tokens, 768)
    ids = torch.randint(3, 30000, (1, tokens))
    if shape == "bert":
        config = hf.BertConfig(num_hidden_layers=layers, max_position_embeddings=tokens)
        return hf.BertModel(config).eval(), ids
    return hf.GPT2Model(hf.GPT2Config(n_layer=layers, n_positions=tokens)).eval(), ids


def measure(shape: str, tokens: int, layers: int, rounds: int) -> tuple[float, float]:
    """The share of the proof, and that of all of the watching, in the processor time of the plain pass."""
    import torch

    from attnscope.capture import recording
    from attnscope.capture.rows.proof import compare_rows

    model, given = build(shape, tokens, layers)
    proofs: list[float] = []

    def timed(*args):
        start = time.process_time()
        difference = compare_rows(*args)
        proofs[-1] += time.process_time() - start
        return difference

    def run(watched: bool) -> float:
        proofs.append(0.0)
        start = time.process_time()
        with recording(model) if watched else nullcontext() as record:
            model(given)
        taken = time.process_time() - start
        assert not watched or all((site.difference or 0.0) < 1e-4 for site in record.sites)
        return taken

    with torch.inference_mode(), ExitStack() as stack:
        for place in PLACES:
            stack.enter_context(patch(f"attnscope.capture.rows.{place}.compare_rows", timed))
        run(True)
        times = [(run(False), run(True)) for _ in range(rounds)]
    plain = statistics.median(each[0] for each in times)
    return statistics.median(proofs[2::2]) / plain, statistics.median(each[1] for each in times) / plain - 1


def main() -> None:
    """Print a table."""
    parser = asked_for(__doc__, [512, 4096], layers=2, rounds=7)
    parser.add_argument("--shapes", nargs="+", default=["gpt2", "bert", "torch"])
    asked = parser.parse_args()
    print("| layers of | tokens | the proof | watching, with the proof |\n|---|---|---|---|")
    for shape in asked.shapes:
        for tokens in asked.tokens:
            proof, watching = measure(shape, tokens, asked.layers, asked.rounds)
            print(f"| {shape} | {tokens:,} | {proof:.1%} | {watching:.1%} |", flush=True)


if __name__ == "__main__":
    main()
