"""Pictures of every kind, to be looked at: ``python -m tests.tools.gallery FOLDER``.

Some 70: what a terminal shows, as SVG and as the text that it was sent (``cat`` shows it), at 80, 100 and 160
columns, in true colour, 256 colours and none; pictures as PNG at 3.3 and 7 inches; and, where there is a
Chromium, the page at three widths in both themes. All of it is what commands print and save: of the bundled
models, the trained MiniLM where it is installed, a decoder of 12 × 12 heads and models that see and hear, on
short and long texts, Japanese, Arabic and emoji.
"""

import argparse
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text
from safetensors.torch import load_file, save_file

from attnscope.attention import Token
from attnscope.axes import Weights, weights
from attnscope.models import load
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from attnscope.render.page import Page, save_page
from tests.models import folders, images, speech, vision_language
from tests.notebook.test_induction import learn
from tests.render.page.browser import CHROMIUM, browser
from tests.tools.readme import run

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


class Plate(NamedTuple):
    """A command, the terminals that show it (columns, colours), and the inches of the pictures it saves."""

    name: str
    arguments: Sequence[str]
    terminals: Sequence[tuple[int, str]] = ((80, "true"),)
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
    decoder = folders.gpt2(place / "decoder", n_layer=12, n_head=12, n_embd=96, n_positions=3072)
    sharpen(Path(decoder) / "model.safetensors", 3.0)
    for tokens, terminal in ((13, WIDE), (60, (100, "256")), (512, (160, "none")), (3000, WIDE)):
        long = ("show", LONG, "-m", decoder, "--max-tokens", str(tokens))
        yield Plate(f"144-heads-{tokens}", long, (terminal,), (7.0,) if tokens == 13 else ())
    yield from figures()
    yield from answers(place)
    yield from senses(place)
    with suppress(ImportError):
        yield from trained(folders.minilm())


def trained(minilm: str) -> Iterator[Plate]:
    """A model that learned, alone and beside the bundled one."""
    yield Plate("minilm-13", ("show", CAT, "-m", minilm))
    yield Plate("minilm-512", ("show", LONG, "-m", minilm, "--truncate"), ((100, "true"),))
    yield Plate("models", ("compare", CAT, "--with-model", minilm), ((100, "true"),))


def sharpen(file: Path, by: float) -> None:
    """Make heads choose: scores are larger, norms as they are in a new model."""
    kept = load_file(file)
    for name, each in kept.items():
        if "ln_" in name:
            each.fill_(float(name.endswith("weight")))
        elif "c_attn.weight" in name:
            each.mul_(by)
    save_file(kept, file, {"format": "pt"})


def heads() -> Iterator[Plate]:
    yield Plate("head", ("show", CAT, "--head", "L2H1"), ((80, "true"), (80, "none")), (7.0,))
    yield Plate("token", ("show", CAT, "--token", "cat"), (WIDE,), (3.3,))
    score = ("show", CAT, "--head", "L2H0", "--pair", "it -> cat", "--neurons")
    yield Plate("neurons", score, ((80, "true"),), INCHES)
    written = ("show", "The king said that he would", "-m", "own-causal", "--generate", "9")
    yield Plate("written", written, ((100, "true"),))
    yield Plate("written-head", (*written, "--head", "L1H1"), (), (7.0,))
    yield Plate("words", ("show", "An unbelievably catlike mat.", "--words", "--head", "L0H7"))


def figures() -> Iterator[Plate]:
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


COLOURS: Mapping[str, Mapping[str, str]] = {
    "true": {"COLORTERM": "truecolor", "NO_COLOR": ""},
    "256": {"COLORTERM": "", "NO_COLOR": ""},
    "none": {"NO_COLOR": "1"},
}
PAGES_OF = {
    "page-13": ((1400, False), (1024, True), (400, False)),
    "page-144-heads": ((1400, True), (1024, False)),
    "page-japanese": ((400, True),),
    "page-arabic": ((1024, False),),
    "page-picture": ((1400, True),),
    "page-sound": ((1400, False),),
}
"""Pixels across, and whether the theme is dark."""
COMPARED = ("tickLayer()", "pin(3)", "changeMode('lines')", "element('head').scrollIntoView()")
"""What compares the heads of a layer in a page."""


def show(arguments: Sequence[str], columns: int = 80, colour: str = "none") -> str:
    """What a command prints on a terminal of so many columns, with its colours; errors end everything."""
    environment = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(columns), **COLOURS[colour]}
    ran = run(["attnscope", *arguments], **environment)
    if ran.code and arguments[0] != "check":
        raise RuntimeError(f"{arguments}: {ran.err}")
    for line in ran.err.splitlines():
        if not line.startswith("saved "):
            print(f"{' '.join(arguments)[:60]}: {line}")
    return ran.out


def draw(folder: Path, plate: Plate) -> None:
    """What a command prints on each terminal, and the pictures that it saves."""
    how = {"record": True, "force_terminal": True, "color_system": "truecolor"}
    for width, colour in plate.terminals:
        target = Console(file=io.StringIO(), width=width, **how)
        printed = show(plate.arguments, width, colour)
        name = f"{plate.name}-{width}-{colour}"
        (folder / f"{name}.ansi").write_text(printed, "utf-8")
        target.print(Text.from_ansi(printed), crop=False)
        target.save_svg(str(folder / f"{name}.svg"), title=name)
    for inches in plate.inches:
        file = folder / f"{plate.name}-{inches}in.png"
        show((*plate.arguments, "-o", str(file), "--size", str(inches)))


def pages(folder: Path, place: Path) -> None:
    """Pages of texts, of many heads, and of models that see and hear."""
    model = load("own")
    for name in ("13", "japanese", "arabic"):
        save_page(all_heads(model, model.prepare(TEXTS[name]), Selection()), folder / f"page-{name}.html")
    large = Page({"decoder": enumerate(twelve_layers(60))}, title="12 layers of 12 heads").text()
    (folder / "page-144-heads.html").write_text(large, "utf-8")
    tone = ("show", "--audio", str(place / "tone.wav"), "-m", str(place / "hubert"))
    show((*tone, "-o", str(folder / "page-sound.html")))
    asked = ("show", "what is on the mat ?", "--image", str(place / "corner.png"), "-m", str(place / "llava"))
    show((*asked, "-o", str(folder / "page-picture.html")))


def twelve_layers(tokens: int) -> list[Weights]:
    """Layers of 12 heads whose rows sum to 1 and are mostly on a few keys."""
    axis = tuple(Token(word, at, word=at) for at, word in enumerate((TEXTS["60"].split() * tokens)[:tokens]))
    drawn = np.random.default_rng(0).standard_gamma(0.1, (12, 12, tokens, tokens)).astype(np.float32)
    return [weights(layer, axis, axis) for layer in drawn / drawn.sum(-1, keepdims=True)]


def photograph(folder: Path) -> None:
    """Pages in a browser as they open, and with a layer compared."""
    with browser() as shown:
        for path in sorted(folder.glob("page-*.html")):
            for width, dark in PAGES_OF[path.stem]:
                shown.size(width, 900)
                shown.dark(dark)
                shown.open(path)
                name = f"{path.stem}-{width}-{'dark' if dark else 'light'}"
                shown.photograph(folder / f"{name}.png")
                if name == "page-13-1400-light":
                    for step in COMPARED:
                        shown.run(step)
                    shown.photograph(folder / f"{name}-compared.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="plates whose names begin so")
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for plate in plates(Path(place)):
            if plate.name.startswith(asked.only):
                draw(folder, plate)
        if "page".startswith(asked.only[:4]):
            pages(folder, Path(place))
    if CHROMIUM is not None:
        try:
            photograph(folder)
        except OSError as error:
            print(f"no photographs: the browser went away ({error})")
    count = sum(path.suffix in (".svg", ".png") for path in folder.iterdir())
    print(f"{count} pictures in {folder}")


if __name__ == "__main__":
    main()
