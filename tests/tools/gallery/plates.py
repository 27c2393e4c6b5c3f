"""Which commands are looked at, on which terminals and in which sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from safetensors.torch import load_file, save_file

from tests.models import folders, images, speech, vision_language
from tests.notebook.induction import learn

CAT = "The cat sat on the mat because it was tired."
DOG = "The dog lay on the mat because it was old."
LONG = " ".join(f"{CAT} The dog that came in at {hour} slept by the fire." for hour in range(240))
TEXTS = {
    "13": CAT,
    "60": " ".join([CAT.rstrip("."), "and the dog that came in late slept by the fire"] * 3),
    "512": LONG,
    "japanese": "猫は疲れていたのでマットの上に座った。",
    "arabic": "جلست القطة على السجادة لأنها كانت متعبة",
    "emoji": "The 🐈 sat on the 🧶 because it was 😴.",
}
INCHES = (3.3, 7.0)
WIDE = (160, "true")

Terminal: TypeAlias = "tuple[int, str]"
"""Columns, and the name of what it knows of colours."""


class Plate(NamedTuple):
    """A command, the terminals that show it, and the inches of the pictures that it saves."""

    name: str
    arguments: Sequence[str]
    terminals: Sequence[Terminal] = ((80, "true"),)
    inches: Sequence[float] = ()


def plates(place: Path) -> Iterator[Plate]:
    """Every command that is looked at; models are made in a folder."""
    own = ((80, "true"), (160, "true"), (80, "256"), (80, "none"))
    yield Plate("own-13", ("show", CAT), own, INCHES)
    yield Plate("own-60", ("show", TEXTS["60"]))
    causal = ("show", LONG, "--truncate", "-m", "own-causal")
    yield Plate("causal-512", causal, (WIDE, (80, "none")), (7.0,))
    for name in ("japanese", "arabic", "emoji"):
        yield Plate(f"{name}-head", ("show", TEXTS[name], "--head", "L2H1"), inches=(3.3,))
    yield Plate("japanese-token", ("show", TEXTS["japanese"], "--token", "3"), (), (7.0,))
    yield Plate("arabic-overview", ("show", TEXTS["arabic"]), ((100, "256"),))
    yield from heads()
    decoder = sharpen(
        folders.gpt2(place / "decoder", n_layer=12, n_head=12, n_embd=96, n_positions=3072), 3.0
    )
    for tokens, terminal in ((13, WIDE), (60, (100, "256")), (512, (160, "none")), (3000, WIDE)):
        long = ("show", LONG, "-m", decoder, "--max-tokens", str(tokens))
        yield Plate(f"144-heads-{tokens}", long, (terminal,), (7.0,) if tokens == 13 else ())
    yield from figures()
    yield from answers(place)
    yield from senses(place)
    try:
        minilm = folders.minilm()
    except ImportError:
        return
    yield Plate("minilm-13", ("show", CAT, "-m", minilm))
    yield Plate("minilm-512", ("show", LONG, "-m", minilm, "--truncate"), ((100, "true"),))
    yield Plate("models", ("compare", CAT, "--with-model", minilm), ((100, "true"),))


def sharpen(folder: str, by: float) -> str:
    """The same model with heads that choose: its scores larger, its norms as they are in a new model."""
    file = Path(folder) / "model.safetensors"
    kept = load_file(file)
    for name, weights in kept.items():
        if "ln_" in name:
            weights.fill_(float(name.endswith("weight")))
        elif "c_attn.weight" in name:
            weights.mul_(by)
    save_file(kept, file, {"format": "pt"})
    return folder


def heads() -> Iterator[Plate]:
    """One head, one token, and what a model wrote."""
    yield Plate("head", ("show", CAT, "--head", "L2H1"), ((80, "true"), (80, "none")), (7.0,))
    yield Plate("token", ("show", CAT, "--token", "cat"), (WIDE,), (3.3,))
    score = ("show", CAT, "--head", "L2H0", "--pair", "it -> cat", "--neurons")
    yield Plate("neurons", score, ((80, "true"),), INCHES)
    written = ("show", "The king said that he would", "-m", "own-causal", "--generate", "9")
    yield Plate("written", written, ((100, "true"),))
    yield Plate("written-head", (*written, "--head", "L1H1"), (), (7.0,))
    yield Plate("words", ("show", "An unbelievably catlike mat.", "--words", "--head", "L0H7"))


def figures() -> Iterator[Plate]:
    """Measures, comparisons, claims and questions."""
    yield Plate("stats", ("stats", CAT), ((80, "true"), WIDE))
    yield Plate("map", ("stats", CAT, "--map", "entropy"), (), (7.0,))
    yield Plate("compare", ("compare", CAT), ((80, "true"),), (7.0,))
    yield Plate("two-heads", ("compare", CAT, "L1H2", "L2H1"), (WIDE,), (3.3,))
    yield Plate("depth", ("flow", CAT, "--layer", "0-3"), ((80, "true"),), (7.0,))
    yield Plate("texts", ("compare", CAT, "--with-text", DOG), ((100, "true"),))
    yield Plate("texts-head", ("compare", CAT, "--with-text", DOG, "--head", "L2H1"), (), (7.0,))
    yield Plate("check", ("check", "L2H1.previous > 0.8", "count(first > 0.5) = 35", "--text", CAT))


def answers(place: Path) -> Iterator[Plate]:
    """Pictures of questions: parts, flow, what is written to a word, and curves."""
    yield Plate("find", ("find", "it -> cat", "* -> -2", CAT))
    yield Plate("spans", ("spans", f"{CAT} {DOG} It slept by the fire."))
    king = ("The king said that he would", "-m", "own-causal")
    yield Plate("shares", ("spans", *king, "--generate", "9", "--written"), (), (7.0,))
    yield Plate("flow", ("flow", CAT), (), (3.3,))
    yield Plate("writes", ("logits", *king), ((80, "true"),), (7.0,))
    place.joinpath("run").mkdir()
    learn(place / "run")
    track = ("track", str(place / "run"), "--texts", str(place / "run" / "probe.txt"))
    yield Plate("track", (*track, "--measure", "induction"), ((80, "true"),), (7.0,))
    yield Plate("curves", ("stats", TEXTS["60"], "-m", "own-causal", "--by-position", "previous"), (), (3.3,))


def senses(place: Path) -> Iterator[Plate]:
    """Models that see and hear, alone and in a text; the pictures and sounds are made."""
    vit = images.vision(place / "vit", "vit")
    image = str(images.picture(place / "corner.png"))
    yield Plate("image", ("show", "--image", image, "-m", vit))
    yield Plate("image-token", ("show", "--image", image, "-m", vit, "--token", "CLS"), inches=(7.0,))
    llava = vision_language.vision_language(place / "llava", "llava")
    asked = ("show", "what is on the mat ?", "--image", image, "-m", llava)
    yield Plate("picture-in-text", (*asked, "--token", "mat"), ((100, "true"),), (7.0,))
    tone = str(speech.sound(place / "tone.wav", 1.0))
    hubert = speech.encoder(place / "hubert", "hubert")
    yield Plate("sound", ("show", "--audio", tone, "-m", hubert, "--head", "L0H1"), ((100, "true"),), (7.0,))
    whisper = speech.whisper(place / "whisper")
    heard = ("show", "The cat sat.", "--audio", tone, "-m", whisper, "--head", "cross L1H0", "--token", "cat")
    yield Plate("word-in-sound", heard, (), (7.0,))
    yield Plate("sound-map", ("align", tone, "The cat sat.", "-m", whisper), (), INCHES)
