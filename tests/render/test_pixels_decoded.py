"""What terminals are sent, read back as their manuals say: the picture that was drawn comes out.

The decoders here are written from the specifications of the protocols, and share nothing with what writes.
"""

import base64
import io
import re
import sys

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from attnscope.render import pixels
from attnscope.render.image import drawing, encode
from attnscope.views import heatmap
from tests.render.screen import random_head

VIEW = heatmap(random_head(6), title="L0H1")


@pytest.fixture
def sent(monkeypatch):
    """What a way writes, to the console and beside it."""

    def send(way):
        console = Console(
            file=io.StringIO(), width=60, height=30, force_terminal=True, color_system="truecolor"
        )
        monkeypatch.setattr(sys, "__stdout__", console.file)
        pixels.print_pixels(VIEW, console, way, None)
        return console.file.getvalue()

    return send


def drawn(size=None):
    """The picture itself, scaled to a size.  -> [row, column, 3]"""
    with drawing(VIEW) as (figure, _):
        image = Image.open(io.BytesIO(encode(figure, "png", pixels.DOTS))).convert("RGB")
    return np.asarray(image.resize(size, Image.Resampling.LANCZOS) if size else image, int)


def assert_same(found, apart: float) -> None:
    wanted = drawn((found.shape[1], found.shape[0]))
    assert np.abs(found - wanted).mean() < apart
    upside_down = np.abs(found[::-1] - wanted).mean()
    assert upside_down > 4 * np.abs(found - wanted).mean()


def test_kitty_is_sent_the_picture_in_commands_of_which_the_first_says_where_it_stands(sent):
    told = sent("kitty")
    commands = [
        (dict(pair.split("=") for pair in keys.split(",")), data)
        for keys, _, data in (body.partition(";") for body in re.findall("\x1b_G(.*?)\x1b\\\\", told, re.S))
    ]
    assert all(len(data) <= 4096 for _, data in commands)
    assert [keys["m"] for keys, _ in commands] == ["1"] * (len(commands) - 1) + ["0"]
    first = commands[0][0]
    assert (first["a"], first["f"], first["q"]) == ("T", "100", "2")  # draw a PNG, and do not answer
    image = Image.open(io.BytesIO(base64.b64decode("".join(data for _, data in commands), validate=True)))
    np.testing.assert_array_equal(np.asarray(image), drawn())
    columns = int(first["c"])
    assert columns <= 60
    assert columns * image.height / image.width / 2 <= 30  # lines of the screen
    assert re.sub("\x1b_G.*?\x1b\\\\", "", told) == "\n"


def read_sixels(body: str):
    """The pixels of a sixel picture, as the VT340's manual says.  -> [row, column, 3]"""
    raster = re.match(r'"(\d+);(\d+);(\d+);(\d+)', body)
    wide, tall = int(raster[3]), int(raster[4])
    picture = np.full((tall + 6, wide, 3), -1)
    colours: dict[int, list[int]] = {}
    x = y = 0
    colour = 0
    for token in re.finditer(
        r"#(\d+);2;(\d+);(\d+);(\d+)|#(\d+)|!(\d+)([?-~])|([?-~])|([$])|(-)", body[raster.end() :]
    ):
        define, red, green, blue, use, count, repeated, single, back, down = token.groups()
        if define:
            colours[int(define)] = [round(int(part) * 2.55) for part in (red, green, blue)]
            colour = int(define)
        elif use:
            colour = int(use)
        elif back:
            x = 0
        elif down:
            x, y = 0, y + 6
        else:
            bits, run = ord(repeated or single) - 63, int(count or 1)
            for bit in range(6):
                if bits >> bit & 1:
                    picture[y + bit, x : x + run] = colours[colour]
            x += run
    return picture[:tall]


def test_sixels_are_the_picture_in_256_colours(sent):
    told = sent("sixel")
    body = re.search("\x1bP[0-9;]*q(.*?)\x1b\\\\", told, re.S)[1]
    found = read_sixels(body)
    assert found.min() >= 0  # every pixel is painted
    assert_same(found, apart=8)
    rows = told.partition("\x1b7")[0].count("\n")  # the lines that are kept free for it
    assert rows <= 28
