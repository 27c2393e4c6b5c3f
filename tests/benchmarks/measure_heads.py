"""What measuring every head costs: time and memory as ratios to the plain forward pass, in one run.

    python -m tests.benchmarks.measure_heads --tokens 512 1024 4096 --threads 1 2 --save table.md

Random models of two shapes, GPT-2-small-sized and Llama-style with grouped queries, on one text: the plain
forward pass (sdpa); all figures and a 256 × 256 map of every head in the fused pass; the same figures beside
the untouched kernel; and the script that users write today, eager attention with ``output_attentions`` and
NumPy. The ways take turns, so that a busy neighbour slows all of them; each ratio is the median over the
rounds. Peak memory is that of a fresh process a way. ``window`` is nothing but the weight outside of a short
cache, for ``cachecost``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.turns import peak, print_peak, ratio, take_turns

NAMES = (
    "entropy",
    "normalized_entropy",
    "confidence",
    "distance",
    "offset",
    "self",
    "previous",
    "next",
    "first",
    "duplicate",
)
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
    config = LlamaConfig(
        hidden_size=32 * size,
        intermediate_size=88 * size,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=tokens,
        attn_implementation=kernel,
    )
    return LlamaModel(config).eval()


def text_of(tokens: int):
    """Token ids with the repeats of a natural text: Zipf's law over 30,000 words.  -> [1, token]"""
    import torch

    torch.manual_seed(1)
    return torch.multinomial(1 / torch.arange(3, 30003).float(), tokens, replacement=True)[None]


def ways(shape: str, tokens: int, layers: int, wanted: tuple[str, ...]) -> dict[str, Callable[[], object]]:
    """Each way as a function without arguments that runs the model once."""
    import torch

    from attnscope.attention import Token
    from attnscope.capture import FUSED, Coarsen, recording
    from attnscope.capture.observers import cells
    from attnscope.fused.fused_pass import FusedPass
    from attnscope.measures import Measurement, fused_request

    ids = text_of(tokens)
    text = tuple(Token(f"w{id_}", id_) for id_ in ids[0].tolist())
    model = build(shape, tokens, layers, eager=False) if set(wanted) - {"eager"} else None
    eager = build(shape, tokens, layers, eager=True) if "eager" in wanted else None

    def plain() -> object:
        return model(input_ids=ids, use_cache=False)

    def fused_pass() -> object:
        measured, maps = Measurement(NAMES), Coarsen(cells(CELLS), "mean")
        fused = FusedPass(fused_request(NAMES, [text], CELLS), shortest=1)
        with recording(model, [measured, maps], {"decoder": (text, text)}, fused) as record:
            model(input_ids=ids, use_cache=False)
        assert {site.kernel for site in record.sites} == {FUSED}
        return measured.figures(), maps.maps

    def window() -> object:
        measured, fused = Measurement(WINDOW), FusedPass(fused_request(WINDOW, [text]), shortest=1)
        with recording(model, [measured], {"decoder": (text, text)}, fused) as record:
            model(input_ids=ids, use_cache=False)
        assert {site.kernel for site in record.sites} == {FUSED}
        return measured.figures()

    def beside() -> object:
        measured = Measurement(NAMES)
        with recording(model, [measured], {"decoder": (text, text)}):
            model(input_ids=ids, use_cache=False)
        return measured.figures()

    def users_script() -> object:
        weights = eager(input_ids=ids, use_cache=False, output_attentions=True).attentions
        figures = []
        for layer in weights:
            rows = layer[0]  # [head, query, key]
            figures.append((-(rows * rows.clamp_min(1e-12).log()).sum(-1).mean(-1), rows.amax(-1).mean(-1)))
            figures.append([rows.diagonal(gap, 1, 2).mean(-1) for gap in (-1, 0, 1)])
        return figures

    functions = dict(zip(WAYS, (plain, fused_pass, window, beside, users_script), strict=True))

    def quiet(function: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            with torch.inference_mode():
                return function()

        return run

    return {name: quiet(functions[name]) for name in wanted}


def time_ratios(
    shape: str, tokens: int, layers: int, threads: int, rounds: int, wanted: tuple[str, ...]
) -> dict[str, float]:
    """Median time of each way over the plain pass of the same round, and the seconds of that."""
    import torch

    torch.set_num_threads(threads)
    wanted = tuple(way for way in wanted if tokens <= LIMITS.get(way, tokens))
    runs = ways(shape, tokens, layers, wanted)
    times = take_turns(runs, rounds, time.perf_counter)
    return {
        "seconds": statistics.median(times["plain"]),
        **{name: ratio(times, name, "plain") for name in runs},
    }


def main() -> None:
    """Print the table, and save it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--shapes", nargs="+", default=["gpt2", "llama"], choices=["gpt2", "llama"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS[1:]), choices=WAYS[1:])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="measure peak memory, too")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        shape, way = options.peak
        (run,) = ways(shape, options.tokens[0], options.layers, (way,)).values()
        ways(shape, 64, 1, (way,))[way]()  # what a first run loads is no part of it
        return print_peak(run)
    lines = [
        "| model | tokens | threads | plain, s | fused pass | window | beside the kernel | eager | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for shape in options.shapes:
        for tokens in options.tokens:
            for threads in options.threads:
                found = time_ratios(
                    shape, tokens, options.layers, threads, options.rounds, ("plain", *options.ways)
                )
                memory = ""
                if options.memory:
                    sizes = ("--tokens", tokens, "--layers", options.layers)
                    parts = [
                        peak("tests.benchmarks.measure_heads", "--peak", shape, way, *sizes)
                        for way in WAYS[:2]
                    ]
                    memory = f"{parts[1] / parts[0]:.2f}"
                cells = [f"{found[name]:.2f}" if name in found else "" for name in WAYS[1:]]
                line = [shape, str(tokens), str(threads), f"{found['seconds']:.2f}", *cells, memory]
                lines.append(f"| {' | '.join(line)} |")
                print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
