"""How fast a corpus is measured, against the loop that users write today.

python -m tests.benchmarks.corpus texts.txt --save table.md

Both read the same texts, a line each, with the bundled encoder, and with torch's own choice of threads unless
told otherwise. The loop takes one text after the other, asks every layer for its weights (eager attention,
what ``output_attentions`` does) and computes the same figures of every head in NumPy, all heads at once:
everything that attnscope measures by default, with what even attention would give and the sums that standard
errors need. Their figures are compared at the end. With ``--bare`` the loop only asks for the weights and
looks at nothing. The two take turns, so that a busy neighbour slows both; the ratio is the median over the
rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.benchmarks.turns import ratio, take_turns

TEXTS = 2000


def eager_loop(model, texts: list[str], bare: bool = False):
    """One text after the other, weights of all layers, the figures of every head.

    -> {measure: [value|baseline, layer, head]}
    """
    import numpy as np
    import torch

    encoder = model.module
    kept: dict[str, np.ndarray] = {}
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
            if bare:
                continue
            special = np.array(encoding.special_tokens_mask, bool)
            marks = [all(unicodedata.category(c)[0] == "P" for c in token) for token in encoding.tokens]
            found = figures(torch.cat(held).numpy(), np.array(encoding.ids), special, np.array(marks))
            for name, sums in found.items():
                kept[name] = kept.get(name, 0) + sums
    finally:
        for layer, forward in zip(encoder.layers, plain, strict=True):
            layer.self_attn.forward = forward
    return {name: sums[:2] / sums[4] for name, sums in kept.items() if sums[4].any()}


def figures(rows, ids, special, marks):
    """All default measures of every head of one text.

    ``rows`` is [layer, head, query, key], the others [token]. -> {measure: [sum over rows of the value | of
    the baseline, value², value · rows, rows, and rows²; layer, head]}
    """
    import numpy as np

    n = len(ids)
    position = np.arange(n)
    gap = position - position[:, None]
    same = (ids == ids[:, None]) & (gap != 0)
    follows = np.zeros((n, n), bool)
    follows[:, 1:] = (ids[:, None] == ids[:-1]) & (position[1:] <= position[:, None])

    def measured(rows):
        entropy = -(rows * np.log(np.maximum(rows, 1e-30))).sum(-1)  # [layer, head, query]
        return {
            "entropy": entropy,
            "normalized_entropy": entropy / np.log(n),
            "effective_keys": np.exp(entropy),
            "confidence": rows.max(-1),
            "no_key": 1 - rows.sum(-1),
            "distance": (rows * abs(gap)).sum(-1),
            "offset": (rows * gap).sum(-1),
            "self": np.diagonal(rows, 0, 2, 3),
            "previous": np.diagonal(rows, -1, 2, 3),
            "next": np.diagonal(rows, 1, 2, 3),
            "first": rows[..., 1:, 0],
            "special": rows[..., special].sum(-1),
            "punctuation": rows[..., marks].sum(-1),
            "duplicate": (rows * same).sum(-1)[..., same.any(-1)],
            "induction": (rows * follows).sum(-1)[..., follows.any(-1)],
        }

    even = measured(np.full((1, 1, n, n), 1 / n))
    found = {}
    for name, values in measured(rows).items():
        count = np.full(values.shape[:2], values.shape[-1], float)
        value, baseline = values.sum(-1, dtype=float), np.broadcast_to(even[name].sum(-1), count.shape)
        found[name] = np.stack([value, baseline, value**2, value * count, count, count**2])
    offsets = rows.argmax(-1) - position
    for head in offsets.reshape(-1, n):
        np.bincount(head + n, minlength=2 * n)
    return found


def largest_difference(measured, looped) -> float:
    """By how much the two disagree at most, of values and baselines; distances count by the token."""
    import numpy as np

    worst = 0.0
    for head in measured:
        for name, figure in head.figures.items():
            if name in looped:
                theirs = looped[name][:, head.site.layer, head.head]
                worst = max(worst, float(np.abs(theirs - (figure.value, figure.baseline)).max()))
    return worst


def measure(model, texts: list[str]):
    """All of attnscope's default measures."""
    from attnscope.questions.corpus_stats import corpus_stats
    from attnscope.storage.corpus import ListedTexts

    return corpus_stats(model, ListedTexts(texts)).heads


def batched(model, texts: list[str]) -> Callable[[], None]:
    """The model alone on the batches that a corpus is measured in, ready to run."""
    import torch

    from attnscope.questions.corpus import batches

    made = [batch.prepared.inputs for batch in batches(model.prepare_all([(text,) for text in texts]))]

    @torch.inference_mode()
    def run() -> None:
        for inputs in made:
            model.module(**inputs)

    return run


def main() -> None:
    """Print the table, and save it if asked."""
    import torch

    from attnscope.models import load

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--count", type=int, default=TEXTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--bare", action="store_true", help="let the loop ask for weights, and no more")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load("own")
    texts = [line for line in options.texts.read_text("utf-8").splitlines() if line.strip()][: options.count]
    ways = {"attnscope": measure, "eager loop": partial(eager_loop, bare=options.bare)}
    if not options.bare:
        worst = largest_difference(measure(model, texts), eager_loop(model, texts))
        print(f"the figures of both agree within {worst:.1e}")
    runs = {name: partial(run, model, texts) for name, run in ways.items()}
    seconds = take_turns(runs, options.rounds, time.perf_counter)
    faster = ratio(seconds, "eager loop", "attnscope")
    pace = {name: len(texts) / statistics.median(taken) for name, taken in seconds.items()}
    cells = [f"{len(texts):,}", str(torch.get_num_threads()), *(f"{pace[name]:,.0f}" for name in ways)]
    lines = [
        "| texts | threads | attnscope, texts/s | eager loop, texts/s | times as fast |",
        "|---|---|---|---|---|",
        f"| {' | '.join([*cells, f'{faster:.1f}'])} |",
    ]
    print("\n".join(lines))
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
