"""Training: AdamW on a cosine, checkpoints that appear whole, and a stop that loses nothing."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnscope.errors import ModelError
from attnscope.network.attention import MultiHeadAttention
from attnscope.network.encoder import Encoder
from attnscope.text import LARGEST_SEED
from attnscope.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from attnscope.training.data import IGNORED, Cutter, Rows
from attnscope.training.guide import guiding, parse_guides
from attnscope.training.optimizer import NAMES, Both, optimizer_for

PRECISIONS = ("float32", "bfloat16")
FEWER_SHAPES = 64
"""Targets are filled up to a multiple of it: CPU libraries keep code for every shape that they ever saw."""
SEEDS = 1_000_003  # steps a seed: the random state of a step is seed * SEEDS + step


@dataclass(frozen=True)
class Settings:
    """How to train. Exactly one of ``steps`` and ``minutes`` says how long.

    ``rate`` is the peak learning rate, reached after the share ``warmup`` of the run and brought to 0 by a
    cosine. ``precision`` is ``float32`` or ``bfloat16`` (products only; weights stay float32).
    ``causal_first`` is the share of the run, at its start, in which a bidirectional encoder learns to guess
    the next token instead of masked ones: every position then teaches, and it leaves the long plateau of
    masked learning early. ``optimizer`` is ``adamw``, or ``muon`` for the matrices of the layers and AdamW
    for the rest. ``guides`` ask heads for patterns (``L0H3=duplicate``) with a second loss, times
    ``guidance``.
    """

    steps: int | None = None
    minutes: float | None = None
    batch: int = 32
    rate: float = 1e-3
    warmup: float = 0.04
    weight_decay: float = 0.05
    clip: float = 1.0
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    optimizer: str = "adamw"
    causal_first: float = 0.0
    guides: tuple[str, ...] = ()
    guidance: float = 0.1
    evaluate_every: int = 500
    evaluate_rows: int = 256
    save_minutes: float = 3.0

    def __post_init__(self) -> None:
        if self.optimizer not in NAMES:
            raise ModelError(f"no optimizer {self.optimizer!r}: there are {', '.join(NAMES)}")
        if self.precision not in PRECISIONS:
            raise ModelError(f"no precision {self.precision!r}: there are {', '.join(PRECISIONS)}")
        if (self.steps is None) == (self.minutes is None):
            raise ModelError("training lasts a number of steps or of minutes: give one of the two")


def fraction(progress: Progress, settings: Settings) -> float:
    """How much of the run is over, 0 to 1."""
    if settings.steps is not None:
        return min(1.0, progress.step / settings.steps)
    return min(1.0, progress.seconds / (60 * (settings.minutes or 1)))


def schedule(over: float, warmup: float) -> float:
    """The learning rate as a share of its peak: up a line, then down a cosine to 0."""
    if over < warmup:
        return over / warmup
    return 0.5 * (1 + math.cos(math.pi * (over - warmup) / (1 - warmup)))


def train(
    encoder: Encoder,
    training: Cutter,
    held_out: Cutter,
    settings: Settings,
    checkpoint: Path,
    resume: bool = False,
    observe: Callable[[Progress], None] = lambda progress: None,
) -> tuple[Progress, bool]:
    """Train ``encoder`` in place; returns where it ended and whether that is the planned end.

    Saves to ``checkpoint`` every few minutes and at the end. Ctrl-C ends the run between two steps, after
    saving. With ``steps``, a resumed run ends in the same weights, bit for bit, as one that never stopped;
    with ``minutes`` the schedule follows the clock and no two runs are alike. Raises ``ModelError`` when
    the loss is no number any more; the checkpoint is then the last one before.
    """
    device = torch.device(settings.device)
    encoder.to(device)
    optimizer = optimizer_for(encoder, settings.optimizer, settings.rate, settings.weight_decay)
    progress = load_checkpoint(checkpoint, encoder, optimizer) if resume else Progress()
    saved = time.monotonic()
    started = saved - progress.seconds
    with plain_attention(encoder, device), stop_between_steps() as stopped:
        encoder.train()
        while fraction(progress, settings) < 1 and not stopped():
            _step(encoder, optimizer, training, settings, progress)
            progress.seconds = time.monotonic() - started
            if progress.step % settings.evaluate_every == 0:
                loss = evaluate(encoder, held_out, settings, settings.evaluate_rows)
                progress.held_out.append((progress.step, loss))
            if time.monotonic() - saved > 60 * settings.save_minutes:
                save_checkpoint(checkpoint, encoder, optimizer, progress)
                saved = time.monotonic()
            observe(progress)
        encoder.eval()
        save_checkpoint(checkpoint, encoder, optimizer, progress)
        done = fraction(progress, settings) >= 1
        if done:
            progress.held_out.append((progress.step, evaluate(encoder, held_out, settings)))
    return progress, done


def _step(
    encoder: Encoder, optimizer: Both, training: Cutter, settings: Settings, progress: Progress
) -> None:
    over = fraction(progress, settings)
    for group in optimizer.param_groups:
        group["lr"] = settings.rate * schedule(over, settings.warmup)
    torch.manual_seed((settings.seed * SEEDS + progress.step) % (LARGEST_SEED + 1))
    causal = encoder.config.causal or over < settings.causal_first
    rows = training.training(progress.step, settings.batch, causal)
    ids = torch.from_numpy(rows.ids).to(settings.device)
    guides = parse_guides(settings.guides, encoder.config.layers, encoder.config.heads)
    with guiding(encoder, guides, ids, causal) as asked:
        loss = rows_loss(encoder, rows, settings, causal)
    optimizer.zero_grad()
    (loss + settings.guidance * sum(asked)).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(encoder.parameters(), settings.clip)
    value = loss.item()
    if not math.isfinite(value):
        raise ModelError(
            f"the loss is {value} at step {progress.step}: choose a lower learning rate than {settings.rate}"
        )
    optimizer.step()
    progress.step += 1
    progress.tokens += rows.ids.size
    progress.loss = value if math.isnan(progress.loss) else 0.98 * progress.loss + 0.02 * value


def evaluate(encoder: Encoder, held_out: Cutter, settings: Settings, rows: int | None = None) -> float:
    """Mean loss in nats of the tokens to be guessed, over all rows or ``rows`` of them, evenly spread."""
    was_training = encoder.training
    encoder.eval()
    total, count = 0.0, 0
    block = 32
    starts = range(0, held_out.count, block)
    if rows is not None:
        starts = starts[:: max(1, len(starts) * block // rows)]
    with torch.no_grad():
        for start in starts:
            part = held_out.evaluation(start, min(start + block, held_out.count))
            guessed = int((part.targets != IGNORED).sum())
            total += float(rows_loss(encoder, part, settings)) * guessed
            count += guessed
    encoder.train(was_training)
    return total / max(1, count)


def rows_loss(encoder: Encoder, rows: Rows, settings: Settings, causal: bool | None = None) -> Tensor:
    """Mean cross-entropy of the targets, in nats; only their positions go through the head."""
    device = torch.device(settings.device)
    ids, segments, targets = (torch.from_numpy(x).to(device) for x in (rows.ids, rows.segments, rows.targets))
    half = settings.precision == "bfloat16"
    with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
        hidden = encoder(ids, segments, causal=causal).flatten(0, 1)  # [batch · token, width]
        where = (targets.flatten() != IGNORED).nonzero()[:, 0]  # [target]
        asked = F.pad(targets.flatten()[where], (0, -len(where) % FEWER_SHAPES), value=IGNORED)
        logits = encoder.logits(hidden[F.pad(where, (0, -len(where) % FEWER_SHAPES))])  # [target, vocabulary]
    return F.cross_entropy(logits.float(), asked, ignore_index=IGNORED)


@contextmanager
def plain_attention(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """On a CPU, plain products in place of the kernel, whose backward pass is several times slower there."""
    modules = [module for module in encoder.modules() if isinstance(module, MultiHeadAttention)]
    for module in modules:
        module.use_kernel = device.type != "cpu"
    try:
        yield
    finally:
        for module in modules:
            module.use_kernel = True


@contextmanager
def stop_between_steps() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into an answer of True; a second one interrupts as usual."""
    pressed = False

    def press(signum: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: pressed
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
