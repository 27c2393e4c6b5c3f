"""Titles and notes in lines as long as there is room for."""

import time

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attnscope.render.image.sheet import BOLD, LINES, SHAPES, wrap_inches, wrap_title

BY_ITSELF = "this matplotlib sets every letter by itself"
TITLE = "L2H1 · own · “The cat sat on the mat because…” · encoder attention"


def drawn(text: str, size: float, weight: str = "normal") -> float:
    """Inches that a line of text takes where it is drawn."""
    figure = Figure(figsize=(20, 1), dpi=100)
    canvas = FigureCanvasAgg(figure)
    box = figure.text(0, 0.5, text, size=size, weight=weight).get_window_extent(canvas.get_renderer())
    return box.width / 100


def ink(text: str) -> np.ndarray:
    """Where a line of text darkens the paper."""
    figure = Figure(figsize=(6, 0.5), dpi=100)
    canvas = FigureCanvasAgg(figure)
    figure.text(0, 0.3, text, size=11)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., 0] < 250


@pytest.mark.parametrize("width", [3.2, 4.0, 5.5])
@pytest.mark.parametrize("bold", [False, True])
def test_every_line_has_room_as_it_is_drawn(width, bold):
    for line in wrap_inches(TITLE, 11, width, bold=bold):
        assert drawn(line, 11, "bold" if bold else "normal") <= width - 0.3


def test_a_title_that_fits_stays_in_one_line_and_bold_letters_are_no_wider_than_is_thought():
    assert drawn(TITLE, 9, "bold") <= BOLD * drawn(TITLE, 9)
    assert wrap_inches(TITLE, 11, drawn(TITLE, 11) * 1.02 + 0.34) == [TITLE]
    assert len(wrap_inches(TITLE, 11, drawn(TITLE, 11))) == 2


def test_lines_are_of_nearly_one_length_and_none_begins_with_a_dot():
    lines = wrap_inches(TITLE, 11, 3.3)
    assert lines == ["L2H1 · own · “The cat sat on the", "mat because…” · encoder attention"]
    every = [line for width in (3, 4, 5) for line in wrap_inches(TITLE, 11, width)]
    assert not any(line.startswith("·") or line.endswith("·") for line in every)
    parts = ["L2H1 · own · “The cat sat on the mat because…”", "encoder attention"]
    assert wrap_inches(TITLE, 11, 4.2) == parts


def test_what_closes_a_text_does_not_begin_a_line():
    for width in (3.2, 3.3, 3.4, 3.5, 3.6):
        lines = wrap_inches("L2H1 · “猫は疲れていたのでマットの上に座った。” · encoder attention", 11, width)
        assert not any(line[0] in "。”·" for line in lines)


@pytest.mark.skipif(not SHAPES, reason=BY_ITSELF)
def test_a_label_from_right_to_left_begins_a_title_that_runs_from_left_to_right():
    assert wrap_title("שלום (token 1) looks at", 9, 4, label="שלום") == "\u2068שלום\u2069 (token 1) looks at"
    assert wrap_title("cat (token 1) looks at", 9, 4, label="cat") == "cat (token 1) looks at"
    assert wrap_title("a\u2068b", 9, 4) == "a‹2068›b"


@pytest.mark.skipif(not SHAPES, reason=BY_ITSELF)
def test_a_line_that_begins_within_a_text_from_right_to_left_still_runs_from_left_to_right():
    title = "L2H1 · own · “جلست القطة على السجادة لأنها كانت متعبة…” · encoder attention"
    lines = wrap_title(title, 11, 3.3).split("\n")
    assert len(lines) > 1
    last = lines[-1]
    assert last.endswith(" · encoder attention")
    begun, whole = ink(last.removesuffix("encoder attention")), ink(last)
    wide = np.flatnonzero(begun.any(0)).max()
    assert (whole[:, :wide] == begun[:, :wide]).all()
    assert whole[:, wide:].any()


def test_a_title_of_too_many_lines_ends_in_dots_and_a_word_that_is_too_long_is_cut():
    long = wrap_title(" ".join([TITLE] * 4), 11, 3.2).split("\n")
    assert len(long) == LINES
    assert long[-1].endswith("…")
    pieces = wrap_inches("x" * 300, 11, 3.2)
    assert "".join(pieces) == "x" * 300
    assert all(drawn(piece, 11) <= 2.9 for piece in pieces)


@pytest.mark.parametrize(
    "text", ["a" * 20_000, "日" * 20_000, "ab " * 7_000, "a" * 9_999 + " " + "b" * 9_999]
)
def test_long_texts_are_wrapped_in_linear_time(text: str) -> None:
    wrap_inches(text[:100], 6.5, 6.0)
    began = time.process_time()
    lines = wrap_inches(text, 6.5, 6.0)
    assert time.process_time() - began < 2  # it took 10 s for a tenth of it
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrap_title(text, 11.0, 6.0).count("\n") == 2
