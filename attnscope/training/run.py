"""A whole training run: text files in, a folder with a model out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from attnscope.errors import AttnscopeError, InputError, ModelError, OutputError
from attnscope.network.encoder import Encoder, EncoderConfig
from attnscope.network.folder import TOKENIZER, load_encoder, load_tokenizer, save_encoder
from attnscope.storage.files import write_whole
from attnscope.training.data import Cutter, Lines, read_stream, split_held_out, train_tokenizer, write_stream
from attnscope.training.train import Settings, TrainingProgress, evaluate, train_encoder

WORK = "training"
"""What a run needs to resume, inside the model's folder; removed when the run is over."""
CHECKPOINT = "checkpoint.safetensors"
CHANGEABLE = ("steps", "minutes", "save_minutes", "device")
"""Settings that a resumed run may change: how long, and where."""
GUESSED = 0.15
"""Share of tokens that are masked when a masked encoder's loss is measured."""


@dataclass(frozen=True)
class Recipe:
    """What is trained on what: the encoder's shape, its tokenizer, and how rows are cut.

    ``config.vocabulary`` is an upper limit; little text may give less. The other fields are those of
    ``Cutter`` and ``train_tokenizer``.
    """

    config: EncoderConfig
    tokenizer: str = "wordpiece"
    lowercase: bool = True
    length: int = 128
    guessed: float = 0.3
    short: float = 0.25
    repeats: float = 0.0

    def __post_init__(self) -> None:
        if not 16 <= self.length <= self.config.max_positions:
            raise ModelError(
                f"the sequence length is from 16 to the model's {self.config.max_positions} positions, "
                f"not {self.length}"
            )
        for name, least in (("guessed", 0.01), ("short", 0.0), ("repeats", 0.0)):
            if not least <= getattr(self, name) <= 1:
                raise ModelError(f"{name} is a share from {least} to 1, not {getattr(self, name)}")


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
    Before any training, raises ``InputError`` for unusable text, ``ModelError`` for a run that cannot be
    resumed, and ``OutputError`` for a folder that is not empty.
    """
    work = folder / WORK
    training_lines, held_out_lines = split_held_out(files, held_out, settings.seed)
    terms = {
        **_terms(training_lines, held_out_lines, recipe, settings),
        "start": str(start) if start else None,
    }
    first = None if start is None else load_encoder(start)
    if first is not None and replace(first[0].config, trained=True) != replace(recipe.config, trained=True):
        raise ModelError(f"the encoder in {start} has another shape than what is to be trained")
    if resume:
        _check_terms(work, terms)
    elif folder.is_file() or any(not path.is_dir() for path in folder.rglob("*")):
        raise OutputError(
            f"{folder} exists already: choose another folder, or continue its run with --resume"
        )
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error
    write_whole(work / "terms.json", json.dumps(terms, indent=2).encode())
    try:
        if first is None and not (work / TOKENIZER).is_file():
            say("learning the vocabulary")
            learned = train_tokenizer(
                training_lines, recipe.config.vocabulary, recipe.tokenizer, recipe.lowercase
            )
            write_whole(work / TOKENIZER, learned.to_str().encode())
        tokenizer = load_tokenizer(work / TOKENIZER) if first is None else first[1]
        config = replace(recipe.config, vocabulary=tokenizer.get_vocab_size(), trained=True)
        cutters = []
        for lines, name in ((training_lines, "training"), (held_out_lines, "held-out")):
            path = work / f"{name}.tokens"
            if not path.is_file():
                say(f"reading the {name} text")
                write_stream(lines, tokenizer, path)
            stream = read_stream(path)
            cutters.append(Cutter(stream, tokenizer, recipe.length, config.causal, seed=settings.seed))
            if cutters[-1].count < 1:
                raise InputError(
                    f"the {name} text has {len(stream)} tokens, but sequences of {recipe.length} "
                    f"need {2 * cutters[-1].stretch} or more: give more text, or shorter sequences"
                )
    except AttnscopeError:
        if not resume:
            shutil.rmtree(folder)
        raise
    guessed = 1.0 if config.causal else GUESSED
    training = replace(cutters[0], guessed=recipe.guessed, short=recipe.short, repeats=recipe.repeats)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        encoder = Encoder(config)
        if first is not None:
            encoder.load_state_dict(first[0].state_dict())
        resumes = resume and (work / CHECKPOINT).is_file()
        progress, done = train_encoder(
            encoder,
            training,
            replace(cutters[1], guessed=guessed),
            settings,
            work / CHECKPOINT,
            resumes,
            observe,
        )
    encoder.cpu()
    if progress.step:
        save_encoder(folder, encoder, tokenizer)
    if done:
        summary = {**terms, "progress": asdict(progress), "torch": torch.__version__}
        write_whole(folder / "training.json", (json.dumps(summary, indent=2) + "\n").encode())
        shutil.rmtree(work)
    return Outcome(encoder, tokenizer, progress, done, tuple(path.name for path in held_out_lines.files))


FEWEST = 14
"""Loss is measured on at least this many tokens."""


def held_out_loss(folder: Path, files: Sequence[Path], length: int = 128, seed: int = 0) -> tuple[float, int]:
    """The loss of a saved encoder on text files, in nats per predicted token, and the number of predictions.

    A masked encoder predicts ``GUESSED`` of the tokens of each row, a causal one every next token. The
    same files, length and seed give the same predictions.
    """
    import tempfile

    import numpy as np

    encoder, tokenizer = load_encoder(folder)
    causal = encoder.config.causal
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "tokens"
        write_stream(Lines(tuple(files)), tokenizer, path)
        stream, stretch = read_stream(path), length - 2
        if len(stream) < FEWEST:
            raise InputError(f"the text has {len(stream)} tokens: give at least {FEWEST}")
        if len(stream) < 2 * stretch:  # one or two rows that hold everything; a cutter holds one row back
            stretch = len(stream) // (-(-len(stream) // stretch))
            stream = np.append(stream, stream[:stretch])
        cutter = Cutter(stream, tokenizer, stretch + 2, causal, 1.0 if causal else GUESSED, seed=seed)
        return evaluate(encoder, cutter, Settings(steps=1)), cutter.count * stretch


def _terms(training: Lines, held_out: Lines, recipe: Recipe, settings: Settings) -> dict[str, Any]:
    """Everything that a run's result depends on, as JSON; raises ``InputError`` for missing files."""
    sides = {}
    for name, lines in (("training", training), ("held_out", held_out)):
        try:
            sides[name] = [{"file": path.name, "bytes": os.stat(path).st_size} for path in lines.files]
        except OSError as error:
            raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error
    if not any(file["bytes"] for file in sides["training"]):
        raise InputError("there is no text to train on: the files are empty")
    terms = {"recipe": asdict(recipe), "settings": asdict(settings), "files": sides}
    result: dict[str, Any] = json.loads(json.dumps(terms))
    return result


def _check_terms(work: Path, terms: dict[str, Any]) -> None:
    """Raise ``ModelError`` unless the run was started with the same terms, ``CHANGEABLE`` ones excepted."""
    path = work / "terms.json"
    if not path.is_file():
        over = (work.parent / "training.json").is_file()
        raise ModelError(
            f"there is nothing to resume in {work.parent}: "
            + ("its run is over" if over else "it holds no run")
        )
    before = json.loads(path.read_bytes())
    for part, what in (("files", "on other files"), ("start", "from another encoder")):
        if before[part] != terms[part]:
            raise ModelError(f"the run in {work.parent} was started {what}: give the same")
    for part in ("recipe", "settings"):
        old = {**before[part].pop("config", {}), **before[part]}
        new = {**terms[part].get("config", {}), **terms[part]}
        new.pop("config", None)
        for name, value in new.items():
            if name not in CHANGEABLE and old.get(name) != value:
                raise ModelError(
                    f"the run in {work.parent} was started with {name} {old.get(name)}, not {value}: "
                    "give the same"
                )
