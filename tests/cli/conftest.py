"""Fixtures for commands."""

from dataclasses import replace

import numpy as np
import pytest

from attnscope.models import load
from attnscope.models.trace_recording import record_trace
from attnscope.network import Encoder, folder_of, load_encoder, save_encoder
from attnscope.storage.trace import write_trace
from tests.cli.run import Loader
from tests.models import folders, images, speech
from tests.models.vision_language import vision_language
from tests.questions.gold import treebank

LOADER = Loader()


@pytest.fixture(autouse=True)
def remembered(request, monkeypatch):
    """Commands load a model once; tests of loading itself say ``loads``, and load it every time."""
    if request.node.get_closest_marker("loads") is None:
        monkeypatch.setattr("attnscope.models.load", LOADER)


MADE = {
    "causal_folder": folders.gpt2,
    "chat_folder": folders.chat,
    "pair_folder": folders.t5,
    "vit": lambda path: images.vision(path, "vit"),
    "llava": lambda path: vision_language(path, "llava"),
    "whisper": speech.whisper,
    "hubert": lambda path: speech.encoder(path, "hubert"),
    "ctc": speech.ctc,
    "picture": lambda path: images.picture(path.with_suffix(".png")),
    "drawing": lambda path: images.save_noise(path.with_suffix(".png"), 90, 120),
    "tone": lambda path: speech.sound(path.with_suffix(".wav"), 1.3),
    "noise": lambda path: speech.noise(path.with_suffix(".wav")),
}
"""Fixtures: a model's folder, or a file, by its name."""


def made(name):
    return pytest.fixture(
        lambda tmp_path_factory: MADE[name](tmp_path_factory.mktemp(name) / name), scope="session", name=name
    )


for _name in MADE:
    globals()[f"made_{_name}"] = made(_name)


WORDS = {
    "TEXT": "The cat sat on the mat because it was tired.",
    "OTHER": "The dog sat on the very old mat because it was tired.",
    "DOG": "The dog sat on the mat because it was tired.",
    "BOOK": "cat " * 2000,
    "MANY": "a b " * 30,
    "TWO": "The cat sat on the mat. It was tired because it ran.",
    "MINILM": folders.minilm(),
}
"""What stands for itself in the commands below."""


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with every file that the commands name, and a tiny model of each sort."""
    place = tmp_path_factory.mktemp("place")
    for make in (folders.gpt2, folders.t5, speech.whisper):
        make(place / make.__name__)
    folders.gpt2(place / "short", n_positions=12)
    folders.chat(place / "picky", "{{ raise_exception('only about dogs') }}")
    speech.encoder(place / "hubert", "hubert")
    images.vision(place / "vit", "vit")
    images.vision(place / "clip", "clip")
    encoder, tokenizer = load_encoder(folder_of("own"))
    save_encoder(place / "new", Encoder(replace(encoder.config, trained=False)), tokenizer)
    images.picture(place / "a.png")
    speech.sound(place / "tone.wav", 1.3)
    speech.sound(place / "long.wav", 3.0)
    np.savez(
        place / "heads.npz", **{f"encoder.{n:02}": np.full((8, 3, 3), 1 / 3, np.float32) for n in range(4)}
    )
    np.savez(place / "negative.npz", np.random.default_rng(0).normal(size=(2, 3, 5, 5)))
    files = {
        "texts.txt": f"{WORDS['TEXT']}\n{WORDS['OTHER']}\n",
        "texts.jsonl": '{"text": "the cat"}\n{"words": "none"}\n',
        "timed.jsonl": '\n{"audio": "a.wav", "words": [["The", 0.12, 0.31]]}\n',
        "labels.txt": "hip\nknee\nfoot\n",
        "one.txt": "A\nB\n",
        "empty.txt": "\n\n",
        "names.tsv": "A\tB\nking\tqueen\n",
        "pairs.tsv": "a cat\ta dog\n",
        "bank.conllu": treebank.conllu(),
        "broken.conllu": f"1\tcat\tno treebank\n\n{treebank.conllu()}",
        "pairs.txt": "The cat sat ||| A cat looks\nwords look ||| heads look back\n",
        "links.txt": "0-0 1-1 2?2\n0-0 1-1\n",
        "drawn/overview.png": "mine",
        "empty/nothing": "",
        "made/nothing": "",
    }
    for name, text in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text, "utf-8")
    (place / "bad.txt").write_bytes(b"fine\n\xff\xfe\n")
    own = load("own")
    write_trace(record_trace(own, own.prepare(WORDS["TEXT"])), place / "a.trace")
    return place
