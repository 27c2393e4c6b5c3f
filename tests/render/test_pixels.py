"""Pixel graphics in terminals that support them; cells elsewhere."""

import base64
import io
import re
import sys

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from rich.text import Text

from attnscope.errors import OutputError
from attnscope.render import terminal as pixels
from attnscope.render.image import drawing, encode
from attnscope.views import HeadRank, Ranking, heatmap
from tests.render.screen import random_head

VIEW = heatmap(random_head(6), title="L0H1")


def console(**more) -> Console:
    colours = {"force_terminal": True, "color_system": "truecolor"}
    return Console(file=io.StringIO(), width=60, height=30, **colours, **more)


@pytest.fixture
def terminal(monkeypatch):
    """Standard output and input as a terminal."""
    pixels.detect_graphics.cache_clear()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    yield
    pixels.detect_graphics.cache_clear()


def test_pixel_method_follows_terminal_and_colour_support(request, monkeypatch):
    for way in ("auto", "kitty", "sixel", "cells"):
        assert pixels.choose_graphics(way, console()) == "cells"
    request.getfixturevalue("terminal")
    for way in ("kitty", "sixel"):
        assert pixels.choose_graphics(way, console()) == way
        assert pixels.choose_graphics(way, console(no_color=True)) == "cells"
    monkeypatch.setattr(sys, "__stdin__", io.StringIO())  # it cannot be asked
    assert pixels.choose_graphics("auto", console()) == "cells"


def test_sixel_without_its_library_is_refused(terminal, monkeypatch):
    monkeypatch.setattr(pixels, "find_spec", lambda name: None)
    assert (pixels.choose_graphics("auto", console()), pixels.choose_graphics("kitty", console())) == (
        "cells",
        "kitty",
    )
    with pytest.raises(OutputError, match=r"--graphics sixel needs textual-image: pip install"):
        pixels.choose_graphics("sixel", console())


def test_graphics_leave_text_as_text(terminal):
    screen = console()
    pixels.print_views([VIEW, Ranking((HeadRank("L0H1", "why"),))], screen, "kitty")
    picture, text = screen.file.getvalue().split("\n\n")
    assert picture.startswith("\x1b_G")
    assert Text.from_ansi(text).plain.split() == ["L0H1", "why"]


def test_graphics_option_has_no_effect_in_a_pipe(run):
    told = [run("show", "The cat sat.", "--graphics", way).out for way in ("cells", "auto", "sixel")]
    assert told[0] == told[1].replace(" --graphics auto", "") == told[2].replace(" --graphics sixel", "")


def drawn():
    """The picture itself.  -> [row, column, 3]"""
    with drawing(VIEW) as (figure, _):
        return np.asarray(Image.open(io.BytesIO(encode(figure, "png", pixels.DOTS_PER_INCH))).convert("RGB"))


def test_kitty_picture_is_sent_in_chunks_with_size_in_the_first():
    screen = console()
    pixels.print_pixels(VIEW, screen, "kitty", None)
    told = screen.file.getvalue()
    keys, data = zip(*re.findall("\x1b_G(.*?);(.*?)\x1b\\\\", told, re.S), strict=True)
    assert max(map(len, data)) <= 4096
    first, *others = (dict(pair.split("=") for pair in each.split(",")) for each in keys)
    assert [each["m"] for each in (first, *others)] == ["1"] * len(others) + ["0"]
    assert (first["a"], first["f"], first["q"]) == ("T", "100", "2")  # draw a PNG, and do not answer
    image = Image.open(io.BytesIO(base64.b64decode("".join(data), validate=True)))
    np.testing.assert_array_equal(np.asarray(image), drawn())
    columns = int(first["c"])
    assert columns <= 60
    assert columns * image.height / image.width / 2 <= 30  # lines of the screen
    assert re.sub("\x1b_G.*?\x1b\\\\", "", told) == "\n"


def test_sixel_picture_fits_the_screen(monkeypatch):
    target, made = console(), []
    pixels.print_pixels(VIEW, target, "sixel", None)
    told = target.file.getvalue()
    assert "\x1bP" in told
    assert told.count("\n") <= target.height - 2
    monkeypatch.setattr("textual_image.renderable.SixelImage", lambda image, **_: made.append(image) or "")
    pixels.print_pixels(VIEW, target, "sixel", None)
    np.testing.assert_array_equal(np.asarray(made[0]), drawn())
