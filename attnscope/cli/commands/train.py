"""``attnscope train``: trains an encoder; options for its shape, data, optimization and run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from attnscope.cli.command import MOST_USED, Group, Often, command, refuse, up_to
from attnscope.cli.messages import EXIT_INTERRUPTED, progress_bar
from attnscope.text import LARGEST_SEED, clean

if TYPE_CHECKING:
    from attnscope.training.train import Settings, TrainingProgress


class ShapeOptions(Group):
    """The shape of the encoder."""

    panel = "Shape"
    causal: Annotated[bool, Often(help="Predict each next token, not masked ones.")] = False
    layers: Annotated[int, Option("--num-layers", help="Layers.", min=1)] = 4
    heads: Annotated[int, Option("--num-heads", help="Heads a layer; they divide the width.", min=1)] = 8
    width: Annotated[int, Option(help="Width of a token's vector.", min=1)] = 256
    hidden: Annotated[int | None, Option(help="Width inside feed-forward; default: 4 widths.", min=1)] = None
    positions: Annotated[
        Literal["rotary", "sinusoidal", "none"], Option(help="How positions are encoded.")
    ] = "rotary"
    max_positions: Annotated[int, Option(help="Tokens of the longest text.", min=16)] = 512
    segments: Annotated[int, Option(help="Segments in one input.", min=0, max=2)] = 2
    start_from: Annotated[
        Path | None, Often(help="Start from an encoder, with its shape and vocabulary.")
    ] = None


class DataOptions(Group):
    """What it is trained on."""

    panel = "Data"
    validation: Annotated[
        list[Path] | None, Option(help="A held-out file; default: a twentieth of FILES.")
    ] = None
    vocabulary: Annotated[int, Option(help="Tokens in the vocabulary.", min=64)] = 8192
    tokenizer: Annotated[
        Literal["wordpiece", "bpe"], Option("--tokenization", help="How text is tokenized.")
    ] = "wordpiece"
    cased: Annotated[bool, Option(help="Keep upper and lower case apart.")] = False
    length: Annotated[int, Option(help="Tokens in a training sequence.", min=16)] = 128
    batch: Annotated[int, Option(help="Sequences a step.", min=1)] = 32
    predicted: Annotated[
        float | None, Option(help="Share of tokens to predict; default: 0.3, causal: 1.", min=0.01, max=1.0)
    ] = None
    short: Annotated[float, Option(help="Share of steps on quarter-length sequences.", min=0.0, max=1.0)] = (
        0.25
    )
    repeats: Annotated[
        float, Option(help="Share of sequences that are repeated random tokens.", min=0.0, max=1.0)
    ] = 0.0


class LearningOptions(Group):
    """How its weights are optimized."""

    panel = "Learning"
    rate: Annotated[float, Option(help="Peak learning rate.", min=0.0)] = 0.001
    warmup: Annotated[float, Option(help="Share of the run spent warming up.", min=0.0, max=0.5)] = 0.04
    weight_decay: Annotated[float, Option(help="Weight decay of matrices.", min=0.0)] = 0.05
    dropout: Annotated[float, Option(help="Dropout.", min=0.0, max=0.9)] = 0.0
    optimizer: Annotated[Literal["adamw", "muon"], Option(help="muon learns faster.")] = "adamw"
    causal_first: Annotated[
        float, Option(help="Share of a masked run that first predicts next tokens.", min=0.0, max=1.0)
    ] = 0.0


class RunOptions(Group):
    """How long, where, and what is kept."""

    panel = "Run"
    steps: Annotated[int | None, Often(help="Train for N steps.", metavar="N", min=1)] = None
    minutes: Annotated[
        float | None, Often(help="Train for N minutes; default: 10, without --steps.", metavar="N", min=0.01)
    ] = None
    seed: Annotated[int, Option(help="The random seed.", min=0, callback=up_to(LARGEST_SEED))] = 0
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"], Option(help="auto: bfloat16 where the device is fast at it.")
    ] = "auto"
    evaluate_every: Annotated[int, Option(help="Steps between held-out losses.", min=1)] = 500
    save_minutes: Annotated[float, Option(help="Minutes between checkpoints.", min=0.0)] = 3.0
    resume: Annotated[bool, Option(help="Continue the run in the folder.", rich_help_panel=MOST_USED)] = False


class TrainOptions(Group):
    """What is read and written."""

    files: Annotated[list[Path], Argument(help="Text files in UTF-8, a document each.")]
    out: Annotated[Path, Option("--out", "-o", help="The folder that the model goes to.")]


@command
def train(
    paths: TrainOptions, shape: ShapeOptions, data: DataOptions, learning: LearningOptions, run: RunOptions
) -> None:
    """Train an encoder on text files.

    Predicts masked tokens, or each next one with --causal. Ctrl-C stops and keeps what was learned; the same
    command with --resume continues. With --steps the result is the same bit for bit, stopped or not.

    Examples:

    attnscope train sample_inputs/*.txt -o my-encoder --minutes 30
    attnscope train sample_inputs/*.txt -o my-causal --causal --steps 500
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
                paths.files, paths.out, recipe, settings, data.validation or (), run.resume, shape.start_from,
                observe, _say,
            )  # fmt: skip
    except KeyboardInterrupt:
        _say("stopped before the first step")
        raise SystemExit(EXIT_INTERRUPTED) from None
    progress = outcome.progress
    if not outcome.done:
        _say(f"stopped at step {progress.step:,}; the same command with --resume continues")
        raise SystemExit(EXIT_INTERRUPTED)
    size = sum(parameter.numel() for parameter in outcome.encoder.parameters())
    shape_text = f"{config.layers} layers × {config.heads} heads, width {config.width}, {size:,} parameters"
    lasted = f"{progress.tokens:,} tokens, {progress.seconds / 60:.1f} minutes"
    print(f"model      {clean(str(paths.out))}: {shape_text}")
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
