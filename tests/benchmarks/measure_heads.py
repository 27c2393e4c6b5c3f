"""What measuring every head costs: time and memory as ratios to the plain forward pass, in one run.

    python -m tests.benchmarks.measure_heads --tokens 512 1024 4096 --threads 1 2 --save table.md

Random models of two shapes, GPT-2-small-sized and Llama-style with grouped queries, on one text: the plain
forward pass (sdpa); all figures and a 256 × 256 map of every head in the fused pass; the same figures beside
the untouched kernel; and the script that users write today, eager attention with ``output_attentions`` and
NumPy. The ways take turns, so that a busy neighbour slows all of them; each ratio is the median over the
rounds. Peak memory is that of a fresh process a way. ``window`` is nothing but the weight outside of a short
cache, for ``cachecost``.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from tests.benchmarks.turns import cost, options, peak, print_peak, ratio, take_turns

NAMES = ("entropy", "normalized_entropy", "confidence", "distance", "offset", "self", "previous", "next")
NAMES += ("first", "duplicate")
CELLS = 256
WAYS = ("plain", "fused pass", "window", "beside", "eager")
WINDOW = ("window=4+256", "no_key")
"""What ``cachecost`` reads of a long text: how much weight each head has outside of a short cache."""
LIMITS = {"beside": 8192, "eager": 2048}
"""Beyond so many tokens a way is not run: eager ``output_attentions`` would need tens of gigabytes."""


def build(shape: str, tokens: int, layers: int, eager: bool = False, size: int = 64):
    """A random model of the shape, long enough for the text; a Llama's heads have so many features."""
    import torch
    from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel

    torch.manual_seed(0)
    kernel = "eager" if eager else "sdpa"
    if shape == "gpt2":
        config = GPT2Config(n_layer=layers, n_positions=tokens, attn_implementation=kernel)
        return GPT2Model(config).eval()
    sizes = {"hidden_size": 32 * size, "intermediate_size": 88 * size, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
    config = LlamaConfig(**sizes, max_position_embeddings=tokens, attn_implementation=kernel)
    return LlamaModel(config).eval()


def ways(shape: str, tokens: int, layers: int, wanted: Sequence[str]) -> dict[str, Callable[[], object]]:
    """Each way as a function without arguments that runs the model once."""
    import torch

    from attnscope.attention import Token
    from attnscope.capture import FUSED, Coarsen, recording
    from attnscope.fused.fused_pass import FusedPass
    from attnscope.measures import Measurement, fused_request
    from attnscope.questions.selection import Selection

    torch.manual_seed(1)  # a natural text repeats: Zipf's law over 30,000 words
    ids = torch.multinomial(1 / torch.arange(3, 30003).float(), tokens, replacement=True)[None]  # [1, token]
    text = tuple(Token(f"w{id_}", id_) for id_ in ids[0].tolist())
    model = build(shape, tokens, layers, eager=False) if set(wanted) - {"eager"} else None
    eager = build(shape, tokens, layers, eager=True) if "eager" in wanted else None

    def plain() -> object:
        return model(input_ids=ids, use_cache=False)

    def measure(names: tuple[str, ...], fused: FusedPass | None, *maps: Coarsen) -> object:
        measured = Measurement(names)
        with recording(model, [measured, *maps], {"decoder": (text, text)}, fused) as record:
            plain()
        assert fused is None or {site.kernel for site in record.sites} == {FUSED}
        return measured.figures(), [each.maps for each in maps]

    def fused_pass() -> object:
        fused = FusedPass(fused_request(NAMES, [text], CELLS), shortest=1)
        return measure(NAMES, fused, Selection().coarsen(CELLS, even=True, how="mean"))

    def window() -> object:
        return measure(WINDOW, FusedPass(fused_request(WINDOW, [text]), shortest=1))

    def beside() -> object:
        return measure(NAMES, None)

    def users_script() -> object:
        weights = eager(input_ids=ids, use_cache=False, output_attentions=True).attentions
        figures = []
        for layer in weights:
            rows = layer[0]  # [head, query, key]
            figures.append((-(rows * rows.clamp_min(1e-12).log()).sum(-1).mean(-1), rows.amax(-1).mean(-1)))
            figures.append([rows.diagonal(gap, 1, 2).mean(-1) for gap in (-1, 0, 1)])
        return figures

    functions = dict(zip(WAYS, (plain, fused_pass, window, beside, users_script), strict=True))
    return {name: torch.inference_mode()(functions[name]) for name in wanted}


def main() -> None:
    import torch

    parser = options(__doc__, tokens=[512, 2048, 4096], threads=[1], layers=2, rounds=5)
    parser.add_argument("--shapes", nargs="+", default=["gpt2", "llama"], choices=["gpt2", "llama"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS[1:]), choices=WAYS[1:])
    parser.add_argument("--memory", action="store_true", help="measure peak memory, too")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peak:
        shape, way = asked.peak
        (run,) = ways(shape, asked.tokens[0], asked.layers, (way,)).values()
        ways(shape, 64, 1, (way,))[way]()  # what a first run loads is no part of it
        return print_peak(run)
    head = (
        "| model | tokens | threads | plain, s | fused pass | window | beside the kernel | eager | memory |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for shape, tokens, threads in product(asked.shapes, asked.tokens, asked.threads):
        torch.set_num_threads(threads)
        wanted = [way for way in ("plain", *asked.ways) if tokens <= LIMITS.get(way, tokens)]
        runs = ways(shape, tokens, asked.layers, wanted)
        times = take_turns({name: partial(cost, run) for name, run in runs.items()}, asked.rounds)
        memory = ""
        if asked.memory:
            sizes = ("--tokens", tokens, "--layers", asked.layers)
            command = ("tests.benchmarks.measure_heads", "--peak", shape)
            plain, fused = (peak(*command, way, *sizes) for way in WAYS[:2])
            memory = f"{fused / plain:.2f}"
        cells = [f"{ratio(times, name, 'plain'):.2f}" if name in times else "" for name in WAYS[1:]]
        cells = [f"{statistics.median(times['plain']):.2f}", *cells, memory]
        lines.append(f"| {' | '.join([shape, str(tokens), str(threads), *cells])} |")
        print(lines[-1], flush=True)
    if asked.save:
        asked.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
