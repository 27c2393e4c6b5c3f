"""How fast a corpus is measured, against the loop that users write today.

python -m tests.benchmarks.corpus texts.txt --save table.md

Both read the same texts, a line each, with the bundled encoder, and with torch's own choice of threads unless
told otherwise. The loop takes one text after the other, asks every layer for its weights (eager attention,
what ``output_attentions`` does) and computes ten figures of every head in NumPy. attnscope measures all that
it measures by default, with baselines and standard errors. The two take turns, so that a busy neighbour slows
both; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

TEXTS = 2000


def eager_loop(model, texts: list[str]) -> object:
    """One text after the other, weights of all layers, a few figures of every head."""
    import numpy as np
    import torch

    encoder = model.module
    kept: list[np.ndarray] = []
    held: list[torch.Tensor] = []

    def asked(attention, forward):
        def run(*args, **kwargs):
            kwargs |= {"need_weights": True, "average_attn_weights": False}
            mixed, weights = forward(*args, **kwargs)
            held.append(weights)
            return mixed, None

        attention.forward = run

    plain = [layer.self_attn.forward for layer in encoder.layers]
    for layer, forward in zip(encoder.layers, plain, strict=True):
        asked(layer.self_attn, forward)
    try:
        for text in texts:
            encoding = model.reader.tokenizer.encode(text)
            held.clear()
            with torch.inference_mode():
                encoder(torch.tensor([encoding.ids]))
            kept.append(ten_figures(torch.cat(held).numpy(), np.array(encoding.ids)))
    finally:
        for layer, forward in zip(encoder.layers, plain, strict=True):
            layer.self_attn.forward = forward
    return np.mean(kept, 0)


def ten_figures(rows, ids):
    """Entropy to duplicate of every head.  [layer, head, query, key], [token] -> [figure, layer, head]"""
    import numpy as np

    position = np.arange(len(ids))
    gap = position - position[:, None]
    same = (ids == ids[:, None]) & (gap != 0)
    entropy = -(rows * np.log(np.maximum(rows, 1e-12))).sum(-1)  # [layer, head, query]
    figures = [
        entropy,
        entropy / np.log(len(ids)),
        rows.max(-1),
        (rows * abs(gap)).sum(-1),
        (rows * gap).sum(-1),
        *(np.diagonal(rows, offset, 2, 3) for offset in (0, -1, 1)),
        rows[..., 1:, 0],
        (rows * same).sum(-1)[..., same.any(-1)] if same.any() else np.zeros((*rows.shape[:2], 1)),
    ]
    return np.stack([figure.mean(-1) for figure in figures])


def measure(model, texts: list[str]) -> object:
    """All of attnscope's default measures."""
    from attnscope.look.corpus import Listed
    from attnscope.look.corpus_stats import corpus_stats

    return corpus_stats(model, Listed(texts)).heads


def main() -> None:
    """Print the table, and save it if asked."""
    import torch

    from attnscope.models import load

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--count", type=int, default=TEXTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load("own")
    texts = [line for line in options.texts.read_text("utf-8").splitlines() if line.strip()][: options.count]
    ways = {"attnscope": measure, "eager loop": eager_loop}
    for run in ways.values():
        run(model, texts[:50])  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, run in ways.items():
            start = time.perf_counter()
            run(model, texts)
            seconds[name].append(time.perf_counter() - start)
    ratio = statistics.median(a / b for a, b in zip(seconds["eager loop"], seconds["attnscope"], strict=True))
    pace = {name: len(texts) / statistics.median(taken) for name, taken in seconds.items()}
    cells = [f"{len(texts):,}", str(torch.get_num_threads()), *(f"{pace[name]:,.0f}" for name in ways)]
    lines = [
        "| texts | threads | attnscope, texts/s | eager loop, texts/s | times as fast |",
        "|---|---|---|---|---|",
        f"| {' | '.join([*cells, f'{ratio:.1f}'])} |",
    ]
    print("\n".join(lines))
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
