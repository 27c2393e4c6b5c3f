"""Training an encoder: from text files to a folder with a model; optimizers, checkpoints, loss."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from attnscope import network
from attnscope.errors import AttnscopeError, InputError, ModelError, OutputError
from attnscope.network import Encoder, EncoderConfig, MultiHeadAttention
from attnscope.records import read
from attnscope.storage.files import write_whole
from attnscope.storage.tensors import read_safetensors
from attnscope.text import LARGEST_SEED
from attnscope.training import data


def make_optimizers(encoder: Encoder, settings: Settings) -> tuple[torch.optim.Optimizer, ...]:
    """AdamW, decaying matrices alone (Loshchilov & Hutter 2019), or Muon in layers (Jordan et al. 2024)."""
    rate, decay = settings.rate, settings.weight_decay
    layers, matrices, vectors = list[Tensor](), list[Tensor](), list[Tensor]()
    for path, each in encoder.named_parameters():
        of_muon = settings.optimizer == "muon" and path.startswith("layers.")
        (vectors if each.dim() < 2 else layers if of_muon else matrices).append(each)
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)
    if not layers:
        return (adam,)
    return adam, torch.optim.Muon(layers, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")


def _states(optimizers: Sequence[torch.optim.Optimizer]) -> dict[Tensor, dict[str, Any]]:
    """The optimizer state of every parameter; empty before the first step."""
    return {
        parameter: each.state[parameter]
        for each in optimizers
        for group in each.param_groups
        for parameter in group["params"]
    }


@dataclass
class TrainingProgress:
    """Where a run stands: what is displayed, and what it resumes from (with the weights)."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0  # that it was trained on
    loss: float = math.nan  # a running mean over the steps, in nats per token
    held_out: tuple[tuple[int, float], ...] = ()  # pairs of step and loss


def save_checkpoint(
    path: Path, encoder: Encoder, optimizers: Sequence[torch.optim.Optimizer], progress: TrainingProgress
) -> None:
    """Weights, moments and progress in one safetensors file, which appears whole or not at all."""
    from safetensors.torch import save

    tensors, states = dict[str, Tensor](), _states(optimizers)
    for name, parameter in encoder.named_parameters():
        tensors[f"weights.{name}"] = parameter.detach().cpu().contiguous()
        for key, value in states[parameter].items():
            tensors[f"{key}.{name}"] = value.detach().cpu().contiguous()
    write_whole(path, save(tensors, metadata={"progress": json.dumps(asdict(progress))}))


def load_checkpoint(
    path: Path, encoder: Encoder, optimizers: Sequence[torch.optim.Optimizer]
) -> TrainingProgress:
    """Restore encoder and optimizers to the state that ``save_checkpoint`` saved."""
    try:
        tensors, metadata = read_safetensors(path)
        progress: TrainingProgress = read(TrainingProgress, json.loads(metadata["progress"]))
    except Exception as error:
        raise ModelError(f"cannot read {path} as a checkpoint: {error}") from error
    states = _states(optimizers)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            parameter.copy_(tensors[f"weights.{name}"])
            for key in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer"):
                if f"{key}.{name}" in tensors:
                    states[parameter][key] = tensors[f"{key}.{name}"].to(parameter.device)
    return progress


MULTIPLE = 64  # targets are padded to a multiple of it: CPU libraries cache code for every shape they see
SEED_STEPS = 1_000_003  # steps per seed: the random state of a step is seed * SEEDS + step


@dataclass(frozen=True)
class Settings:
    """How to train. Exactly one of ``steps`` and ``minutes`` says how long.

    ``rate`` is the peak learning rate, reached after the share ``warmup`` of the run. In ``precision``
    are products alone; weights stay float32. ``causal_first`` is the share of the run, at its start, in
    which a bidirectional encoder predicts next tokens instead of masked ones: then every position gives a
    gradient, and the long plateau of masked learning ends early.
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
    precision: Literal["float32", "bfloat16"] = "float32"
    optimizer: Literal["adamw", "muon"] = "adamw"
    causal_first: float = 0.0
    evaluate_every: int = 500
    evaluate_rows: int = 256
    save_minutes: float = 3.0


def fraction(progress: TrainingProgress, settings: Settings) -> float:
    """How much of the run is over, 0 to 1."""
    if settings.steps is not None:
        return min(1.0, progress.step / settings.steps)
    assert settings.minutes is not None
    return min(1.0, progress.seconds / (60 * settings.minutes))


def schedule(over: float, warmup: float) -> float:
    """The learning rate as a share of its peak: linear warm-up, then a cosine to 0."""
    if over < warmup:
        return over / warmup
    return 0.5 * (1 + math.cos(math.pi * (over - warmup) / (1 - warmup)))


def train_encoder(
    encoder: Encoder,
    training: data.Cutter,
    held_out: data.Cutter,
    settings: Settings,
    checkpoint: Path,
    resume: bool = False,
    observe: Callable[[TrainingProgress], None] = lambda progress: None,
) -> tuple[TrainingProgress, bool]:
    """Train ``encoder`` in place; returns where it ended and whether that is the planned end.

    Saves to ``checkpoint`` every few minutes, after Ctrl-C and at the end. With ``steps``, a resumed run
    ends in the same weights, bit for bit, as an uninterrupted one; ``minutes`` follow the clock.
    """
    device = torch.device(settings.device)
    encoder.to(device)
    optimizers = make_optimizers(encoder, settings)
    progress = load_checkpoint(checkpoint, encoder, optimizers) if resume else TrainingProgress()
    saved = time.monotonic()
    started = saved - progress.seconds
    attentions = [each for each in encoder.modules() if isinstance(each, MultiHeadAttention)]
    for each in attentions:  # the kernel's backward pass is several times slower on a CPU
        each.use_kernel = device.type != "cpu"
    with stop_between_steps() as stopped:
        encoder.train()
        while (over := fraction(progress, settings)) < 1 and not stopped():
            for group in (group for one in optimizers for group in one.param_groups):
                group["lr"] = settings.rate * schedule(over, settings.warmup)
            torch.manual_seed((settings.seed * SEED_STEPS + progress.step) % (LARGEST_SEED + 1))
            causal = encoder.config.causal or over < settings.causal_first
            rows = training.training(progress.step, settings.batch, causal)
            loss = rows_loss(encoder, rows, settings, causal)
            encoder.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(encoder.parameters(), settings.clip)
            value = loss.item()
            if not math.isfinite(value):
                problem = f"the loss is {value} at step {progress.step}"
                raise ModelError(f"{problem}: choose a lower learning rate than {settings.rate}")
            for optimizer in optimizers:
                optimizer.step()
            progress.step += 1
            progress.tokens += rows.ids.size
            progress.loss = value if math.isnan(progress.loss) else 0.98 * progress.loss + 0.02 * value
            progress.seconds = time.monotonic() - started
            if progress.step % settings.evaluate_every == 0:
                loss_now = evaluate(encoder, held_out, settings, settings.evaluate_rows)
                progress.held_out += ((progress.step, loss_now),)
            if time.monotonic() - saved > 60 * settings.save_minutes:
                save_checkpoint(checkpoint, encoder, optimizers, progress)
                saved = time.monotonic()
            observe(progress)
        encoder.eval()
        save_checkpoint(checkpoint, encoder, optimizers, progress)
        done = fraction(progress, settings) >= 1
        if done:
            progress.held_out += ((progress.step, evaluate(encoder, held_out, settings)),)
    for each in attentions:
        each.use_kernel = True
    return progress, done


def evaluate(encoder: Encoder, held_out: data.Cutter, settings: Settings, rows: int | None = None) -> float:
    """Mean loss in nats per predicted token, over all rows or ``rows`` of them, evenly spread."""
    was_training = encoder.training
    encoder.eval()
    total, count, block = 0.0, 0, 32
    starts = range(0, held_out.count, block)
    if rows is not None:
        starts = starts[:: max(1, len(starts) * block // rows)]
    with torch.no_grad():
        for start in starts:
            part = held_out.evaluation(start, min(start + block, held_out.count))
            guessed = int((part.targets != data.IGNORED).sum())
            total += float(rows_loss(encoder, part, settings)) * guessed
            count += guessed
    encoder.train(was_training)
    return total / max(1, count)


def rows_loss(
    encoder: Encoder, rows: data.TokenRows, settings: Settings, causal: bool | None = None
) -> Tensor:
    """Mean cross-entropy of the targets, in nats; only their positions go through the head."""
    device = torch.device(settings.device)
    ids, segments, targets = (torch.from_numpy(x).to(device) for x in (rows.ids, rows.segments, rows.targets))
    half = settings.precision == "bfloat16"
    with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
        hidden = encoder(ids, segments, causal=causal).flatten(0, 1)  # [batch · token, width]
        where = (targets.flatten() != data.IGNORED).nonzero()[:, 0]  # [target]
        wanted_ids = F.pad(targets.flatten()[where], (0, -len(where) % MULTIPLE), value=data.IGNORED)
        logits = encoder.logits(hidden[F.pad(where, (0, -len(where) % MULTIPLE))])  # [target, vocabulary]
    return F.cross_entropy(logits.float(), wanted_ids, ignore_index=data.IGNORED)


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


WORK_FOLDER = "training"  # what a run resumes from, in the model's folder; removed when the run is over
CHECKPOINT = "checkpoint.safetensors"
CHANGEABLE = ("steps", "minutes", "save_minutes", "device")  # in a resumed run: how long, and where
MASKED = 0.15  # share of tokens that are masked when a masked encoder's loss is measured


@dataclass(frozen=True)
class Recipe:
    """What is trained on what: the encoder's shape, its tokenizer, and how a ``Cutter`` cuts rows."""

    config: EncoderConfig
    tokenizer: data.TokenizerKind = "wordpiece"
    lowercase: bool = True
    length: int = 128
    guessed: float = 0.3
    short: float = 0.25
    repeats: float = 0.0

    def __post_init__(self) -> None:
        most = self.config.max_positions
        if not 16 <= self.length <= most:
            limits = f"the sequence length is from 16 to the model's {most} positions"
            raise ModelError(f"{limits}, not {self.length}")


@dataclass(frozen=True)
class Outcome:
    """How a run ended; ``done`` says whether at its planned end, ``held_out`` names the held-out files."""

    encoder: Encoder
    tokenizer: Tokenizer
    progress: TrainingProgress
    done: bool
    held_out: tuple[str, ...]


def train_on_files(
    files: Sequence[Path],
    folder: Path,
    recipe: Recipe,
    settings: Settings,
    held_out: Sequence[Path] = (),
    resume: bool = False,
    start: Path | None = None,
    observe: Callable[[TrainingProgress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Outcome:
    """Train an encoder on text files and save it in ``folder``, even if it is stopped early.

    ``start`` names the folder of an encoder to start from, whose config ``recipe`` must have; its
    tokenizer is taken too. ``say`` is called with what is being prepared, ``observe`` with every step.
    """
    work = folder / WORK_FOLDER
    training_lines, held_out_lines = data.split_held_out(files, held_out, settings.seed)
    terms = _terms(training_lines, held_out_lines, recipe, settings, start)
    first = None if start is None else network.load_encoder(start)
    if first is not None and replace(first[0].config, trained=True) != replace(recipe.config, trained=True):
        raise ModelError(f"the encoder in {start} has another shape than what is to be trained")
    if resume:
        _check_terms(work, terms)
    elif folder.is_file() or any(not path.is_dir() for path in folder.rglob("*")):
        advice = "choose another folder, or continue its run with --resume"
        raise OutputError(f"{folder} exists already: {advice}")
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}") from error
    write_whole(work / "terms.json", json.dumps(terms, indent=2).encode())
    try:
        tokenizer = _learn_tokenizer(work, training_lines, recipe, say) if first is None else first[1]
        config = replace(recipe.config, vocabulary=tokenizer.get_vocab_size(), trained=True)
        cutter = data.Cutter(EMPTY, tokenizer, recipe.length, config.causal, seed=settings.seed)
        training = _cut_lines(cutter, training_lines, work / "training.tokens", say)
        held = _cut_lines(cutter, held_out_lines, work / "held-out.tokens", say)
    except AttnscopeError:
        if not resume:
            shutil.rmtree(folder)
        raise
    training = replace(training, guessed=recipe.guessed, short=recipe.short, repeats=recipe.repeats)
    held = replace(held, guessed=1.0 if config.causal else MASKED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        encoder = Encoder(config)
        if first is not None:
            encoder.load_state_dict(first[0].state_dict())
        resumes = resume and (work / CHECKPOINT).is_file()
        progress, done = train_encoder(encoder, training, held, settings, work / CHECKPOINT, resumes, observe)
    encoder.cpu()
    if progress.step:
        network.save_encoder(folder, encoder, tokenizer)
    if done:
        summary = {**terms, "progress": asdict(progress), "torch": torch.__version__}
        write_whole(folder / "training.json", (json.dumps(summary, indent=2) + "\n").encode())
        shutil.rmtree(work)
    return Outcome(encoder, tokenizer, progress, done, tuple(path.name for path in held_out_lines.files))


EMPTY = np.zeros(0, np.uint32)  # the stream of a cutter before its text is read


def _learn_tokenizer(work: Path, lines: data.Lines, recipe: Recipe, say: Callable[[str], None]) -> Tokenizer:
    """The tokenizer of the training text, which a resumed run finds in its folder."""
    path = work / network.TOKENIZER
    if not path.is_file():
        say("learning the vocabulary")
        learned = data.train_tokenizer(lines, recipe.config.vocabulary, recipe.tokenizer, recipe.lowercase)
        write_whole(path, learned.to_str().encode())
    return network.load_tokenizer(path)


def _cut_lines(cutter: data.Cutter, lines: data.Lines, path: Path, say: Callable[[str], None]) -> data.Cutter:
    """A cutter of these lines, whose tokens are written to ``path``. Raises ``InputError`` for too few."""
    if not path.is_file():
        say(f"reading the {path.stem} text")
        data.write_stream(lines, cutter.tokenizer, path)
    cutter = replace(cutter, stream=data.read_stream(path))
    if cutter.count < 1:
        raise InputError(
            f"the {path.stem} text has {len(cutter.stream)} tokens, but sequences of {cutter.length} "
            f"need {2 * cutter.stretch} or more: give more text, or shorter sequences"
        )
    return cutter


LEAST_TOKENS = 14  # loss is measured on at least this many tokens


def held_out_loss(folder: Path, files: Sequence[Path], length: int = 128, seed: int = 0) -> tuple[float, int]:
    """The loss of a saved encoder on text files, in nats per predicted token, and how many are predicted."""
    import tempfile

    encoder, tokenizer = network.load_encoder(folder)
    causal = encoder.config.causal
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "tokens"
        data.write_stream(data.Lines(tuple(files)), tokenizer, path)
        stream, stretch = data.read_stream(path), length - 2
        if len(stream) < LEAST_TOKENS:
            raise InputError(f"the text has {len(stream)} tokens: give at least {LEAST_TOKENS}")
        if len(stream) < 2 * stretch:  # one or two rows that hold everything; a cutter holds one row back
            stretch = len(stream) // (-(-len(stream) // stretch))
            stream = np.append(stream, stream[:stretch])
        cutter = data.Cutter(stream, tokenizer, stretch + 2, causal, 1.0 if causal else MASKED, seed=seed)
        return evaluate(encoder, cutter, Settings(steps=1)), cutter.count * stretch


def _terms(
    training: data.Lines, held_out: data.Lines, recipe: Recipe, settings: Settings, start: Path | None
) -> dict[str, Any]:
    """Everything that a run's result depends on, as JSON; raises ``InputError`` for missing files."""
    sides = {}
    for name, lines in (("training", training), ("held_out", held_out)):
        try:
            sides[name] = [{"file": path.name, "bytes": os.stat(path).st_size} for path in lines.files]
        except OSError as error:
            raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
    if not any(file["bytes"] for file in sides["training"]):
        raise InputError("there is no text to train on: the files are empty")
    terms = {"recipe": asdict(recipe), "settings": asdict(settings), "files": sides}
    result: dict[str, Any] = json.loads(json.dumps({**terms, "start": start and str(start)}))
    return result


def _check_terms(work: Path, terms: dict[str, Any]) -> None:
    """Raise ``ModelError`` unless the run was started with the same terms, ``CHANGEABLE`` ones excepted."""
    path = work / "terms.json"
    if not path.is_file():
        over = (work.parent / "training.json").is_file()
        why = "its run is over" if over else "it holds no run"
        raise ModelError(f"there is nothing to resume in {work.parent}: {why}")
    before = json.loads(path.read_bytes())
    for part, what in (("files", "on other files"), ("start", "from another encoder")):
        if before[part] != terms[part]:
            raise ModelError(f"the run in {work.parent} was started {what}: give the same")
    parts = ((each["recipe"]["config"], each["recipe"], each["settings"]) for each in (before, terms))
    old, new = (config | recipe | settings for config, recipe, settings in parts)
    for name in new:
        if name not in ("config", *CHANGEABLE) and old.get(name) != new[name]:
            started = f"was started with {name} {old.get(name)}, not {new[name]}"
            raise ModelError(f"the run in {work.parent} {started}: give the same")
