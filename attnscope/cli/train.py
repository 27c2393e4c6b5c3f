"""``attnscope train``: an encoder of one's own from text files; ``attnscope loss``: how well one guesses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from attnscope.training.checkpoint import Progress
    from attnscope.training.train import Settings

SHAPE, LEARNING, DATA, RUN = "Shape", "Learning", "Data", "Run"
STOPPED = 130
"""The exit code of a run that Ctrl-C stopped, as shells have it."""

EXAMPLES = """Examples:

attnscope train books/*.txt -o my-encoder --minutes 30

attnscope train books/*.txt -o my-causal --causal --layers 3 --repeats 0.3 --steps 2000

attnscope train books/*.txt -o my-encoder --minutes 30 --resume
"""

LOSS_EXAMPLES = """Example:

attnscope loss my-encoder unseen-book.txt
"""


class TokenizerKind(str, Enum):
    """Which sort of tokenizer is learned."""

    wordpiece = "wordpiece"
    bpe = "bpe"


class Positions(str, Enum):
    """How an encoder knows where a token stands."""

    rotary = "rotary"
    sinusoidal = "sinusoidal"
    none = "none"


class Optimizer(str, Enum):
    """How weights are moved."""

    adamw = "adamw"
    muon = "muon"


class Precision(str, Enum):
    """What products are computed in."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


def _panel(
    panel: str, text: str, *names: str, min: float | None = None, max: float | None = None, shown: bool = True
) -> Any:
    """An option in one of the panels; ``shown=False`` for a default that the text explains."""
    return typer.Option(*names, help=text, rich_help_panel=panel, min=min, max=max, show_default=shown)


def train(
    files: Annotated[list[Path], typer.Argument(help="Text files in UTF-8, a document each.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that the model goes to.")],
    held_out: Annotated[
        list[Path] | None,
        _panel(DATA, "A file only tested on, one each; a twentieth of FILES unless given.", shown=False),
    ] = None,
    causal: Annotated[bool, _panel(SHAPE, "Guess each next token, not masked ones.", "--causal")] = False,
    layers: Annotated[int, _panel(SHAPE, "Layers.", min=1)] = 4,
    heads: Annotated[int, _panel(SHAPE, "Heads a layer; they divide the width.", min=1)] = 8,
    width: Annotated[int, _panel(SHAPE, "Numbers a token's vector has.", min=1)] = 256,
    hidden: Annotated[
        int | None,
        _panel(SHAPE, "Width inside feed-forward; 4 widths unless given.", min=1, shown=False),
    ] = None,
    positions: Annotated[Positions, _panel(SHAPE, "How positions are told apart.")] = Positions.rotary,
    max_positions: Annotated[int, _panel(SHAPE, "Tokens of the longest text.", min=16)] = 512,
    segments: Annotated[int, _panel(SHAPE, "Texts told apart in one input.", min=0, max=2)] = 2,
    vocabulary: Annotated[int, _panel(DATA, "Tokens in the vocabulary.", min=64)] = 8192,
    tokenizer: Annotated[TokenizerKind, _panel(DATA, "How text is cut.")] = TokenizerKind.wordpiece,
    cased: Annotated[bool, _panel(DATA, "Tell capitals from small letters.", "--cased")] = False,
    length: Annotated[int, _panel(DATA, "Tokens in a training sequence.", min=16)] = 128,
    batch: Annotated[int, _panel(DATA, "Sequences a step.", min=1)] = 32,
    guessed: Annotated[
        float | None,
        _panel(DATA, "Share of tokens to guess; 0.3, or 1 if causal.", min=0.01, max=1.0, shown=False),
    ] = None,
    short: Annotated[float, _panel(DATA, "Share of steps on quarter lengths.", min=0.0, max=1.0)] = 0.25,
    repeats: Annotated[
        float, _panel(DATA, "Share of sequences that are repeated random tokens.", min=0.0, max=1.0)
    ] = 0.0,
    steps: Annotated[
        int | None,
        _panel(RUN, "Train that many steps.", min=1, shown=False),
    ] = None,
    minutes: Annotated[
        float | None,
        _panel(RUN, "Train that long; 10 unless --steps are given.", min=0.01, shown=False),
    ] = None,
    rate: Annotated[float, _panel(LEARNING, "Peak learning rate.", min=0.0)] = 1e-3,
    warmup: Annotated[float, _panel(LEARNING, "Share of the run up to it.", min=0.0, max=0.5)] = 0.04,
    weight_decay: Annotated[float, _panel(LEARNING, "How fast matrices shrink.", min=0.0)] = 0.05,
    dropout: Annotated[float, _panel(LEARNING, "Share of values dropped.", min=0.0, max=0.9)] = 0.0,
    optimizer: Annotated[
        Optimizer, _panel(LEARNING, "muon learns faster; it needs torch 2.9.")
    ] = Optimizer.adamw,
    causal_first: Annotated[
        float, _panel(LEARNING, "Share of a masked run that starts with next tokens.", min=0.0, max=1.0)
    ] = 0.0,
    guide: Annotated[
        list[str] | None,
        _panel(LEARNING, "Ask a head for a pattern: L0H3=duplicate (or previous, next).", shown=False),
    ] = None,
    guidance: Annotated[float, _panel(LEARNING, "How much that counts beside guessing.", min=0.0)] = 0.1,
    seed: Annotated[int, _panel(RUN, "Decides all that is random.", min=0)] = 0,
    device: Annotated[str, _panel(RUN, "auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[Precision, _panel(RUN, "auto: bfloat16 where it is fast.")] = Precision.auto,
    evaluate_every: Annotated[int, _panel(RUN, "Steps between held-out losses.", min=1)] = 500,
    save_minutes: Annotated[float, _panel(RUN, "Minutes between checkpoints.", min=0.0)] = 3.0,
    start_from: Annotated[
        Path | None,
        _panel(RUN, "Go on from an encoder's folder, with its shape and vocabulary.", shown=False),
    ] = None,
    resume: Annotated[bool, _panel(RUN, "Go on with the run in the folder.", "--resume")] = False,
) -> None:
    """Train an encoder on text files.

    Guesses masked tokens, or each next one with --causal. Ctrl-C stops and keeps what was learned; the same
    command with --resume goes on. With --steps the result is the same bit for bit, stopped or not.
    """
    from attnscope.network import EncoderConfig, load_config
    from attnscope.training.run import Recipe, train_on_files
    from attnscope.training.train import Settings

    if steps is not None and minutes is not None:
        raise typer.BadParameter("training lasts a number of steps or of minutes, not both")
    config = EncoderConfig(
        vocabulary=vocabulary, width=width, layers=layers, heads=heads, hidden=hidden or 4 * width,
        max_positions=max(max_positions, length), positions=positions.value, segments=segments,
        causal=causal, dropout=dropout,
    )  # fmt: skip
    if start_from is not None:
        config = load_config(start_from)
    recipe = Recipe(
        config, tokenizer.value, not cased, length, guessed or (1.0 if config.causal else 0.3), short, repeats
    )
    place = _device(device)
    settings = Settings(
        steps=steps, minutes=None if steps else minutes or 10.0, batch=batch, rate=rate, warmup=warmup,
        weight_decay=weight_decay, seed=seed, device=place, precision=_precision(precision, place),
        optimizer=optimizer.value, causal_first=causal_first, guides=tuple(guide or ()), guidance=guidance,
        evaluate_every=evaluate_every, save_minutes=save_minutes,
    )  # fmt: skip
    try:
        with _display(settings) as observe:
            outcome = train_on_files(
                files, out, recipe, settings, held_out or (), resume, start_from, observe, _say
            )
    except KeyboardInterrupt:
        _say("stopped before the first step")
        raise typer.Exit(STOPPED) from None
    progress = outcome.progress
    if not outcome.done:
        _say(f"stopped at step {progress.step:,}; the same command with --resume goes on")
        raise typer.Exit(STOPPED)
    size = sum(parameter.numel() for parameter in outcome.encoder.parameters())
    shape = f"{config.layers} layers × {config.heads} heads, width {config.width}"
    print(f"model      {out}: {shape}, {size:,} parameters")
    print(
        f"trained    {progress.step:,} steps, {progress.tokens:,} tokens, {progress.seconds / 60:.1f} minutes"
    )
    print(f"held out   {', '.join(outcome.held_out)}")
    print(f"loss       {progress.held_out[-1][1]:.3f} nats a guessed token on held-out text")


def loss(
    model: Annotated[str, typer.Argument(help="own, own-causal, or a folder that attnscope train made.")],
    files: Annotated[list[Path], typer.Argument(help="Text files that the model was not trained on.")],
    length: Annotated[int, typer.Option(min=16, help="Tokens in a sequence.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Decides which tokens are hidden.")] = 0,
) -> None:
    """Print how well an encoder guesses: nats a token, where guessing blindly is the vocabulary's logarithm.

    A masked encoder is asked for 15 % of the tokens, each hidden behind [MASK]; a causal one for every next
    token. The same files ask the same questions.
    """
    import math

    from attnscope.cli.waiting import waiting
    from attnscope.network import bundled, load_config
    from attnscope.network.folder import BUNDLED
    from attnscope.training.run import held_out_loss

    folder = bundled(model) if model in BUNDLED else Path(model)
    config = load_config(folder)
    with waiting(f"{model} guesses"):
        value, tokens = held_out_loss(folder, files, length, seed)
    asked = "every next token" if config.causal else "15 % of the tokens"
    blind = math.log(config.vocabulary)
    print(f"{value:.3f} nats a token, asked for {asked} of {tokens:,}; guessing blindly is {blind:.3f}")


def _device(name: str) -> str:
    import torch

    from attnscope.errors import ModelError

    present = ["cpu"]
    if torch.cuda.is_available():
        present.insert(0, "cuda")
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    if name == "auto":
        return present[0]
    if name.split(":")[0] not in present:
        raise ModelError(f"no device {name!r} here: this machine has {', '.join(present)}")
    return name


def _precision(wanted: Precision, device: str) -> str:
    """bfloat16 where the device multiplies it faster than float32."""
    import torch

    if wanted is not Precision.auto:
        return str(wanted.value)
    if device.startswith("cuda"):
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        known = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
        fast = device == "cpu" and any(ask is not None and ask() for ask in known)
    return "bfloat16" if fast else "float32"


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


@contextmanager
def _display(settings: Settings) -> Iterator[Callable[[Progress], None]]:
    """A live bar on a terminal; elsewhere a line whenever there is a new held-out loss."""
    from attnscope.training.train import fraction

    def held_out(progress: Progress) -> str:
        return f"{progress.held_out[-1][1]:.3f}" if progress.held_out else "  -  "

    def left(progress: Progress) -> str:
        over = fraction(progress, settings)
        seconds = int(progress.seconds * (1 - over) / over) if over else 0
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def line(progress: Progress) -> str:
        pace = progress.tokens / max(progress.seconds, 1e-9)
        return (
            f"step {progress.step:,}  {pace:,.0f} tokens/s  loss {progress.loss:.3f}  "
            f"held-out {held_out(progress)}  {left(progress)} left"
        )

    if not sys.stderr.isatty():
        seen = 0

        def report(progress: Progress) -> None:
            nonlocal seen
            if len(progress.held_out) > seen:
                seen = len(progress.held_out)
                _say(line(progress))

        yield report
        return

    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = BarColumn(bar_width=None), TextColumn("{task.description}", markup=False)
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, visible=False)

        def draw(progress: Progress) -> None:
            bar.update(task, completed=fraction(progress, settings), description=line(progress), visible=True)

        yield draw
