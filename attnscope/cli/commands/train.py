"""``attnscope train``: trains an encoder; options for its shape, data, optimization and run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.cli.command import REQUIRED, Group, argument, command, flag, option, refuse
from attnscope.cli.waiting import STOPPED, progress_bar
from attnscope.text import LARGEST_SEED, clean

if TYPE_CHECKING:
    from attnscope.training.train import Settings, TrainingProgress


class ShapeOptions(Group):
    """The shape of the encoder."""

    panel = "Shape"
    causal: bool = flag("Predict each next token, not masked ones.")
    layers: int = option("Layers.", min=1, default=4)
    heads: int = option("Heads a layer; they divide the width.", min=1, default=8)
    width: int = option("Width of a token's vector.", min=1, default=256)
    hidden: int | None = option("Width inside feed-forward; 4 widths unless given.", min=1)
    positions: Literal["rotary", "sinusoidal", "none"] = option(
        "How positions are encoded.", default="rotary"
    )
    max_positions: int = option("Tokens of the longest text.", min=16, default=512)
    segments: int = option("Segments in one input.", min=0, max=2, default=2)
    start_from: Path | None = option("Start from an encoder's folder, with its shape and vocabulary.")


class DataOptions(Group):
    """What it is trained on."""

    panel = "Data"
    held_out: list[Path] | None = option("A held-out file (repeatable); default: a twentieth of FILES.")
    vocabulary: int = option("Tokens in the vocabulary.", min=64, default=8192)
    tokenizer: Literal["wordpiece", "bpe"] = option("How text is tokenized.", default="wordpiece")
    cased: bool = flag("Keep upper and lower case apart.")
    length: int = option("Tokens in a training sequence.", min=16, default=128)
    batch: int = option("Sequences a step.", min=1, default=32)
    predicted: float | None = option(
        "Share of tokens to predict; default: 0.3, or 1 if causal.",
        "--guessed",
        "--predicted",
        min=0.01,
        max=1.0,
    )
    short: float = option("Share of steps on quarter-length sequences.", min=0.0, max=1.0, default=0.25)
    repeats: float = option(
        "Share of sequences that are repeated random tokens.", min=0.0, max=1.0, default=0.0
    )


class LearningOptions(Group):
    """How its weights are optimized."""

    panel = "Learning"
    rate: float = option("Peak learning rate.", min=0.0, default=0.001)
    warmup: float = option("Share of the run spent warming up.", min=0.0, max=0.5, default=0.04)
    weight_decay: float = option("Weight decay of matrices.", min=0.0, default=0.05)
    dropout: float = option("Dropout.", min=0.0, max=0.9, default=0.0)
    optimizer: Literal["adamw", "muon"] = option("muon learns faster.", default="adamw")
    causal_first: float = option(
        "Share of a masked run that first predicts next tokens.", min=0.0, max=1.0, default=0.0
    )


class RunOptions(Group):
    """How long, where, and what is kept."""

    panel = "Run"
    steps: int | None = option("Train for N steps.", min=1)
    minutes: float | None = option("Train for N minutes; default: 10, unless --steps is given.", min=0.01)
    seed: int = option("The random seed.", min=0, largest=LARGEST_SEED, default=0)
    device: str = option("auto, cpu, cuda or mps.", default="auto")
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto: bfloat16 where the device is fast at it.", default="auto"
    )
    evaluate_every: int = option("Steps between held-out losses.", min=1, default=500)
    save_minutes: float = option("Minutes between checkpoints.", min=0.0, default=3.0)
    resume: bool = flag("Continue the run in the folder.")


class TrainOptions(Group):
    """What is read and written."""

    files: list[Path] = argument("Text files in UTF-8, a document each.", default=REQUIRED)
    out: Path = option("The folder that the model goes to.", default=REQUIRED)


@command
def train(
    given: TrainOptions, shape: ShapeOptions, data: DataOptions, learning: LearningOptions, run: RunOptions
) -> None:
    """Train an encoder on text files.

    Predicts masked tokens, or each next one with --causal. Ctrl-C stops and keeps what was learned; the same
    command with --resume continues. With --steps the result is the same bit for bit, stopped or not.

    Examples:

    attnscope train books/*.txt -o my-encoder --minutes 30
    attnscope train books/*.txt -o my-causal --causal --layers 3 --repeats 0.3 --steps 2000
    attnscope train books/*.txt -o my-encoder --minutes 30 --resume
    """
    from attnscope.models import choose_device
    from attnscope.network import EncoderConfig, load_config
    from attnscope.training.train import Recipe, Settings, train_on_files

    both = run.steps is not None and run.minutes is not None
    refuse(both, "--steps, --minutes", "training lasts a number of steps or of minutes, not both")
    if shape.start_from is not None:
        config = load_config(shape.start_from)
    else:
        sizes = _fields(EncoderConfig, shape, data, learning)
        sizes["hidden"] = shape.hidden or 4 * shape.width
        config = EncoderConfig(**sizes | {"max_positions": max(shape.max_positions, data.length)})
    share = data.predicted or (1.0 if config.causal else 0.3)
    recipe = Recipe(config, lowercase=not data.cased, guessed=share, **_fields(Recipe, data))
    minutes, place = None if run.steps else run.minutes or 10.0, str(choose_device(run.device))
    chosen = {"minutes": minutes, "device": place, "precision": _precision(run.precision, place)}
    settings = Settings(**_fields(Settings, data, learning, run) | chosen)
    try:
        with _display(settings) as observe:
            outcome = train_on_files(
                given.files, given.out, recipe, settings, data.held_out or (), run.resume, shape.start_from,
                observe, _say,
            )  # fmt: skip
    except KeyboardInterrupt:
        _say("stopped before the first step")
        raise SystemExit(STOPPED) from None
    progress = outcome.progress
    if not outcome.done:
        _say(f"stopped at step {progress.step:,}; the same command with --resume continues")
        raise SystemExit(STOPPED)
    size = sum(parameter.numel() for parameter in outcome.encoder.parameters())
    made = f"{config.layers} layers × {config.heads} heads, width {config.width}, {size:,} parameters"
    lasted = f"{progress.tokens:,} tokens, {progress.seconds / 60:.1f} minutes"
    print(f"model      {clean(str(given.out))}: {made}")
    print(f"trained    {progress.step:,} steps, {lasted}")
    print(f"held out   {clean(', '.join(outcome.held_out))}")
    print(f"loss       {progress.held_out[-1][1]:.3f} nats a predicted token on held-out text")


def _fields(record: type[Any], *groups: Any) -> dict[str, Any]:
    """The fields of a record that are options of the same name."""
    known = {each.name for each in fields(record)}
    return {name: value for group in groups for name, value in vars(group).items() if name in known}


def _precision(wanted: str, device: str) -> str:
    """bfloat16 where the device multiplies it faster than float32."""
    import torch

    if wanted != "auto":
        return wanted
    if device.startswith("cuda"):
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        known = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
        fast = device == "cpu" and any(ask is not None and ask() for ask in known)
    return "bfloat16" if fast else "float32"


def _say(sentence: str) -> None:
    print(clean(sentence), file=sys.stderr)


@contextmanager
def _display(settings: Settings) -> Iterator[Callable[[TrainingProgress], None]]:
    """A live bar on a terminal; otherwise a line for each new held-out loss."""
    from attnscope.training.train import fraction

    def words(progress: TrainingProgress) -> str:
        over = fraction(progress, settings)
        seconds = int(progress.seconds * (1 - over) / over) if over else 0
        held_out = f"{progress.held_out[-1][1]:.3f}" if progress.held_out else "  -  "
        return (
            f"step {progress.step:,}  {progress.tokens / max(progress.seconds, 1e-9):,.0f} tokens/s  "
            f"loss {progress.loss:.3f}  held-out {held_out}  "
            f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"
        )

    reported = 0

    def report(progress: TrainingProgress) -> None:
        nonlocal reported
        if len(progress.held_out) > reported:
            reported = len(progress.held_out)
            _say(words(progress))

    with progress_bar(remaining=False) as draw:
        yield report if draw is None else lambda progress: draw(fraction(progress, settings), words(progress))
