"""How an encoder of one's own is made: its shape, its data, its learning and its run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnscope.cli.options.declare import flag, option
from attnscope.text import LARGEST_SEED

SHAPE, LEARNING, DATA, RUN = "Shape", "Learning", "Data", "Run"


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """The shape of the encoder."""

    causal: bool = flag("Predict each next token, not masked ones.", panel=SHAPE)
    layers: int = option("Layers.", panel=SHAPE, min=1, default=4)
    heads: int = option("Heads a layer; they divide the width.", panel=SHAPE, min=1, default=8)
    width: int = option("Numbers a token's vector has.", panel=SHAPE, min=1, default=256)
    hidden: int | None = option("Width inside feed-forward; 4 widths unless given.", min=1, panel=SHAPE)
    positions: Literal["rotary", "sinusoidal", "none"] = option(
        "How positions are told apart.", panel=SHAPE, default="rotary"
    )
    max_positions: int = option("Tokens of the longest text.", panel=SHAPE, min=16, default=512)
    segments: int = option("Texts told apart in one input.", panel=SHAPE, min=0, max=2, default=2)
    start_from: Path | None = option(
        "Go on from an encoder's folder, with its shape and vocabulary.", panel=SHAPE
    )


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What it learns from."""

    held_out: list[Path] | None = option(
        "A file only tested on, one each; a twentieth of FILES unless given.", panel=DATA
    )
    vocabulary: int = option("Tokens in the vocabulary.", panel=DATA, min=64, default=8192)
    tokenizer: Literal["wordpiece", "bpe"] = option("How text is cut.", panel=DATA, default="wordpiece")
    cased: bool = flag("Tell capitals from small letters.", panel=DATA)
    length: int = option("Tokens in a training sequence.", panel=DATA, min=16, default=128)
    batch: int = option("Sequences a step.", panel=DATA, min=1, default=32)
    predicted: float | None = option(
        "Share of tokens to predict; 0.3, or 1 if causal.",
        "--guessed",
        "--predicted",
        min=0.01,
        max=1.0,
        panel=DATA,
    )
    short: float = option("Share of steps on quarter lengths.", panel=DATA, min=0.0, max=1.0, default=0.25)
    repeats: float = option(
        "Share of sequences that are repeated random tokens.", panel=DATA, min=0.0, max=1.0, default=0.0
    )


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """How its weights are moved."""

    rate: float = option("Peak learning rate.", panel=LEARNING, min=0.0, default=0.001)
    warmup: float = option("Share of the run up to it.", panel=LEARNING, min=0.0, max=0.5, default=0.04)
    weight_decay: float = option("How fast matrices shrink.", panel=LEARNING, min=0.0, default=0.05)
    dropout: float = option("Share of values dropped.", panel=LEARNING, min=0.0, max=0.9, default=0.0)
    optimizer: Literal["adamw", "muon"] = option(
        "muon learns faster; it needs torch 2.9.", panel=LEARNING, default="adamw"
    )
    causal_first: float = option(
        "Share of a masked run that starts with next tokens.", panel=LEARNING, min=0.0, max=1.0, default=0.0
    )
    guide: list[str] | None = option(
        "Ask a head for a pattern: L0H3=duplicate (or previous, next).", panel=LEARNING
    )
    guidance: float = option("How much that counts beside predicting.", panel=LEARNING, min=0.0, default=0.1)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How long, where, and what is kept."""

    steps: int | None = option("Train that many steps.", min=1, panel=RUN)
    minutes: float | None = option("Train that long; 10 unless --steps are given.", min=0.01, panel=RUN)
    seed: int = option("Decides all that is random.", panel=RUN, min=0, largest=LARGEST_SEED, default=0)
    device: str = option("auto, cpu, cuda or mps.", panel=RUN, default="auto")
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto: bfloat16 where it is fast.", panel=RUN, default="auto"
    )
    evaluate_every: int = option("Steps between held-out losses.", panel=RUN, min=1, default=500)
    save_minutes: float = option("Minutes between checkpoints.", panel=RUN, min=0.0, default=3.0)
    resume: bool = flag("Go on with the run in the folder.", panel=RUN)
