"""How fast a corpus is measured, against the loop that users write today, and against the model alone.

python -m tests.benchmarks.corpus texts.txt --minilm --save table.md

All read the same texts, a line each, with the bundled encoder or with MiniLM, and with torch's own choice of
threads unless told otherwise. The loop takes one text after the other, asks every layer for its weights
(eager attention, what ``output_attentions`` does) and computes the same figures of every head in NumPy, all
heads at once: everything that attnscope measures by default, with what even attention would give and the
sums that standard errors need. Their figures are compared at the end. The model alone runs on the batches
that attnscope makes, with the texts read before. They take turns, so that a busy neighbour slows all; the
ratios are medians over the rounds.
"""

import statistics
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.turns import cost, options, ratio, take_turns
from tests.tools.survey import grid

if TYPE_CHECKING:
    import torch

Reading = tuple["torch.Tensor", Sequence[int], Sequence[int], Sequence[str]]
"""Weights, [layer, head, query, key], ids, which tokens are special, and how they are spelled."""


@contextmanager
def own_reader(model) -> Iterator[Callable[[str], Reading]]:
    """The bundled encoder, told to return its weights, reads a text."""
    import torch

    encoder, held = model.module, list[torch.Tensor]()
    asked = {"need_weights": True, "average_attn_weights": False}

    def read(text: str) -> Reading:
        encoding = model.reader.tokenizer.encode(text)
        held.clear()
        with torch.inference_mode():
            encoder(torch.tensor([encoding.ids]))
        return torch.cat(held), encoding.ids, encoding.special_tokens_mask, encoding.tokens

    with ExitStack() as stack:
        for attend in (layer.self_attn for layer in encoder.layers):
            ask = attend.register_forward_pre_hook(
                lambda _, args, named: (args, named | asked), with_kwargs=True
            )
            stack.callback(ask.remove)
            keep = attend.register_forward_hook(lambda _, args, output: held.append(output[1]))
            stack.callback(keep.remove)
        yield read


@contextmanager
def eager_reader(model) -> Iterator[Callable[[str], Reading]]:
    """A model of transformers with eager attention reads a text."""
    import torch

    eager, tokenizer = _load_eager(model.name)

    def read(text: str) -> Reading:
        encoded = tokenizer(text, return_special_tokens_mask=True)
        ids, special = encoded["input_ids"], encoded.pop("special_tokens_mask")
        with torch.inference_mode():
            inputs = {name: torch.tensor([field]) for name, field in encoded.items()}
            weights = eager(**inputs, output_attentions=True).attentions
        return torch.cat(weights), ids, special, tokenizer.convert_ids_to_tokens(ids)

    yield read


@cache
def _load_eager(name: str):
    from transformers import AutoModel, AutoTokenizer

    eager = AutoModel.from_pretrained(name, attn_implementation="eager")
    return eager.eval(), AutoTokenizer.from_pretrained(name)


def by_loop(model, texts: list[str]):
    """One text after the other, weights of all layers, the figures of every head.

    The bundled encoder reads, or a model of transformers. -> {measure: [value|baseline, layer, head]}
    """
    import numpy as np

    kept: dict[str, np.ndarray] = {}
    with (own_reader if model.name == "own" else eager_reader)(model) as read:
        for text in texts:
            weights, ids, special, tokens = read(text)
            marks = [all(unicodedata.category(c)[0] == "P" for c in token) for token in tokens]
            found = figures(weights.numpy(), np.array(ids), np.array(special, bool), np.array(marks))
            for name, sums in found.items():
                kept[name] = kept.get(name, 0) + sums
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
    from attnscope.questions.corpus import corpus_stats
    from attnscope.storage.corpus import ListedTexts

    return corpus_stats(model, ListedTexts(texts)).heads


def batched(model, texts: list[str]) -> Callable[[], None]:
    """The model alone on the batches that a corpus is measured in, ready to run."""
    import torch

    from attnscope.models.inputs import batches

    made = [batch.prepared.inputs for batch in batches(model.prepare_all([(text,) for text in texts]))]

    @torch.inference_mode()
    def run() -> None:
        for inputs in made:
            model.module(**inputs)

    return run


def main() -> None:
    import torch

    from attnscope.models import load
    from tests.models.folders import minilm

    parser = options(__doc__, count=2000, rounds=3)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--minilm", action="store_true", help="measure MiniLM, not the bundled encoder")
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    model = load(minilm() if asked.minilm else "own")
    texts = [line for line in asked.texts.read_text("utf-8").splitlines() if line.strip()][: asked.count]
    worst = largest_difference(measure(model, texts), by_loop(model, texts))
    print(f"the figures of both agree within {worst:.1e}")
    ways = {"attnscope": partial(measure, model, texts), "eager loop": partial(by_loop, model, texts)}
    runs = {**ways, "model": batched(model, texts)}
    seconds = take_turns({name: partial(cost, run) for name, run in runs.items()}, asked.rounds)
    pace = {name: len(texts) / statistics.median(taken) for name, taken in seconds.items()}
    ratios = ratio(seconds, "eager loop", "attnscope"), ratio(seconds, "attnscope", "model")
    names = [f"{name}, texts/s" for name in runs]
    head = ["texts", "threads", *names, "times as fast as the loop", "time to the model's"]
    cells = [f"{len(texts):,}", torch.get_num_threads(), *(f"{pace[name]:,.0f}" for name in runs)]
    table = "\n".join(grid([head, [*cells, *(f"{each:.2f}" for each in ratios)]]))
    print(table)
    if asked.save:
        asked.save.write_text(f"{table}\n", "utf-8")


if __name__ == "__main__":
    main()
