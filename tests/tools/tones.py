"""A small speech model that learns to write tones as notes, and whether its words light the right moments.

``python -m tests.tools.tones FOLDER`` trains a Whisper on tones in some minutes on a processor and saves it
in FOLDER. It writes what it hears as notes, ``E6 C5 G7``: a letter, and a number for the octave. One
head is chosen on some sounds. Of sounds that it never heard ``attnscope show
--audio`` tells which moment the letter of a note looks at most, and ``attnscope align`` what is played when.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import torch
import transformers
from torch import Tensor

from attnscope.cli import main
from tests.models import speech

RATE, SECONDS = 16000, 3
FRAMES = 50 * SECONDS
LETTERS, OCTAVES = "CDEFGAB", (5, 6, 7)
STEPS_UP = (0, 2, 4, 5, 7, 9, 11)  # half tones of the letters above C
PLAYED = 5
SHORTEST_NOTE, SHORTEST_PAUSE = 0.18, 0.03
STEPS, BATCH = 500, 24
CHOSEN_ON, ASKED = 20, 100


class Note(NamedTuple):
    """A letter with its octave, and when it is played, in seconds."""

    letter: str
    octave: int
    begin: float
    end: float

    @property
    def name(self) -> str:
        return f"{self.letter}{self.octave}"

    @property
    def pitch(self) -> float:
        return 440 * 2 ** (self.octave - 4 + (STEPS_UP[LETTERS.index(self.letter)] - 9) / 12)


def play(random: np.random.Generator) -> tuple[np.ndarray, list[Note]]:
    """Some notes with pauses between them, no letter twice, all of lengths of their own.  -> [sample]"""
    wave = 0.01 * random.standard_normal(RATE * SECONDS)
    least = np.array([SHORTEST_PAUSE, SHORTEST_NOTE] * PLAYED + [SHORTEST_PAUSE])
    lengths = least + random.dirichlet(np.ones(len(least))) * (SECONDS - least.sum())
    edges, notes = np.cumsum(lengths), []
    letters = random.choice(list(LETTERS), PLAYED, replace=False)
    for letter, begin, end in zip(letters, edges[0::2], edges[1::2], strict=False):
        note = Note(str(letter), int(random.choice(OCTAVES)), float(begin), float(end))
        first, last = round(begin * RATE), round(end * RATE)
        time_ = np.arange(last - first) / RATE
        wave[first:last] += random.uniform(0.2, 0.5) * np.sin(2 * np.pi * note.pitch * time_)
        notes.append(note)
    return wave.astype(np.float32), notes


def build(folder: Path) -> tuple[Any, Any, Any]:
    """A small Whisper with its tokenizer, as that is when it is read from a folder, and feature extractor."""
    speech.tokenizer([" " + " ".join(LETTERS)] * 2).save_pretrained(folder)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    id_of = words.convert_tokens_to_ids
    end, start = id_of("<|endoftext|>"), id_of("<|startoftranscript|>")
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    config = transformers.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_mel_bins=80,
        max_source_positions=FRAMES,
        max_target_positions=32,
        vocab_size=len(words),
        init_std=0.1,  # so narrow a model would look nowhere at first
        **special,
    )
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(**special, max_length=32)
    return model, words, transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)


def batch(
    random: np.random.Generator, words: Any, extractor: Any
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """New sounds with their notes written, what comes behind each token, and each frame's letter and place.

    [sound, token] and [letter | number, sound, frame]; -100 is nothing.
    """
    made = [play(random) for _ in range(BATCH)]
    heard = extractor([wave for wave, _ in made], sampling_rate=RATE, return_tensors="pt")
    ids = torch.tensor([words("".join(f" {note.name}" for note in notes)).input_ids for _, notes in made])
    frames = torch.full((2, BATCH, FRAMES), -100)
    for number, (_, notes) in enumerate(made):
        for place, note in enumerate(notes):
            first, last = (round(FRAMES / SECONDS * edge) for edge in (note.begin, note.end))
            frames[0, number, first:last] = words.convert_tokens_to_ids(f"Ġ{note.letter}")
            frames[1, number, first:last] = place
    return {"input_features": heard["input_features"], "decoder_input_ids": ids[:, :-1]}, ids[:, 1:], frames


def train(model: Any, words: Any, extractor: Any) -> None:
    """Learn to write the notes, and to tell of each frame which letter is played, and the how manieth it is.

    What tells the latter from the encoder's states is thrown away.
    """
    random = np.random.default_rng(0)
    count = torch.nn.Linear(model.config.d_model, PLAYED)
    optimizer = torch.optim.AdamW([*model.parameters(), *count.parameters()], weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    began = time.monotonic()
    for step in range(STEPS):
        inputs, wanted, (letters, places) = batch(random, words, extractor)
        seen = model(**inputs)
        states = seen.encoder_last_hidden_state  # [sound, frame, feature]
        named, counted = model.proj_out(states), count(states)
        entropy = torch.nn.functional.cross_entropy
        loss = entropy(seen.logits[:, 1:].flatten(0, 1), wanted[:, 1:].flatten())
        loss = loss + 0.5 * entropy(named.flatten(0, 1), letters.flatten())
        loss = loss + 0.5 * entropy(counted.flatten(0, 1), places.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            right = (seen.logits.argmax(-1) == wanted)[:, 1:].all(1).float().mean()
            frames = [
                float((each.argmax(-1) == wanted_)[wanted_ >= 0].float().mean())
                for each, wanted_ in ((named, letters), (counted, places))
            ]
            spent = time.monotonic() - began
            print(
                f"step {step + 1}: {frames[0]:.2f} of letters and {frames[1]:.2f} of places heard, "
                f"{right:.2f} of sounds written, {spent:.0f} s",
                file=sys.stderr,
                flush=True,
            )


class Sound(NamedTuple):
    """A sound file, its notes, and the one that is asked for."""

    path: Path
    notes: list[Note]
    asked: Note

    @property
    def text(self) -> str:
        return " ".join(note.name for note in self.notes)


def record(folder: Path, name: str, count: int, seed: int) -> list[Sound]:
    """New sounds as files."""
    random, sounds = np.random.default_rng(seed), []
    for number in range(count):
        wave, notes = play(random)
        soundfile.write(folder / f"{name}{number}.wav", wave, RATE)
        sounds.append(Sound(folder / f"{name}{number}.wav", notes, notes[random.integers(PLAYED)]))
    return sounds


def answer(*words: object) -> Any:
    """What a command answers as JSON."""
    out = io.StringIO()
    sys.argv = ["attnscope", *map(str, words), "--json"]
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    return json.loads(out.getvalue())


def is_lit(folder: Path, sound: Sound, head: str) -> bool:
    """Whether the letter of the note that is asked for looks most at a moment at which it is played."""
    asked = ["--head", f"cross {head}", "--token", sound.asked.letter]
    seen = answer("show", sound.text, "--audio", sound.path, "-m", folder, *asked)
    most = max(seen["looks_at"], key=lambda moment: moment["weight"])
    begin = float(most["text"].removesuffix(" s"))
    return begin < sound.asked.end and begin + SECONDS / FRAMES > sound.asked.begin


def is_timed(folder: Path, sound: Sound, heads: str) -> tuple[bool, bool]:
    """Whether the model writes all notes, and whether the one asked for is what is played most meanwhile."""
    words = answer("align", sound.path, "-m", folder, "--heads", heads)["words"]
    written = [word["text"] for word in words] == [note.name for note in sound.notes]
    said = next((word for word in words if word["text"] == sound.asked.name), {"begin": 0.0, "end": 0.0})
    played = {note: min(said["end"], note.end) - max(said["begin"], note.begin) for note in sound.notes}
    most = max(played, key=lambda note: played[note])
    return written, most == sound.asked and played[most] > 0


def ask(folder: Path) -> None:
    """Choose a head on some sounds, and say how often the words light the right moments of others."""
    known, others = record(folder, "known", CHOSEN_ON, 1), record(folder, "asked", ASKED, 2)
    heads = ("L0H0", "L0H1", "L1H0", "L1H1")
    best = max(heads, key=lambda head: sum(is_lit(folder, sound, head) for sound in known))
    lit = sum(is_lit(folder, sound, best) for sound in others)
    timed = [is_timed(folder, sound, best) for sound in others]
    print(f"{best} lights the right moment in {lit} of {ASKED} sounds that the model never heard")
    print(f"it writes all {PLAYED} notes of {sum(written for written, _ in timed)} of them")
    print(f"aligned by {best} the note is played when it is said to be in {sum(right for _, right in timed)}")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if not (folder / "config.json").exists():
        parts = build(folder)
        train(*parts)
        for part in parts:
            part.save_pretrained(folder)
    ask(folder)
