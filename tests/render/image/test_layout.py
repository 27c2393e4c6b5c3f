"""Pictures of any width: no text leaves the figure or overlaps, and lines are as long as they can be."""

import re
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from unittest.mock import Mock

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnscope.axes import weights
from attnscope.cli.deliver import apply_title_options, writes_weights
from attnscope.cli.options import PrintedOptions
from attnscope.errors import OutputError
from attnscope.render import image as draw
from attnscope.render.image import Album, drawing, save_image, sheet
from attnscope.render.image.sheet import BOLD_WIDTH, SHAPES_TEXT, TITLE_LINES, wrap_inches, wrap_title
from attnscope.views import NamedScore, Overlay, grid, head_row, heatmap, token_view
from attnscope.views.charts import Panels, Stack
from attnscope.views.heads import distance_map, head_map
from tests.render.image.test_images import curves
from tests.render.screen import all_heads, bare, pair, random_head, tokens

WIDTHS = (1, 2, 3.3, 7, 10)
LONG = "previous-token heads of a small model · every one of them · encoder attention of a long title"
FIGURES = "entropy effective_keys confidence distance previous self next first special"


@cache
def views() -> dict[str, object]:
    head, said = random_head(13, causal=True), {"title": LONG, "subtitle": LONG, "notes": (LONG,)}
    heads = {f"cross L{seed}H10": random_head(13, seed=seed) for seed in range(7)}
    named = [heatmap(each, title=name, subtitle="weak induction") for name, each in heads.items()]
    stack, alone = (bare(np.stack([head.values] * count)) for count in (8, 1))
    readings = tuple(NamedScore(name, 12.345, 0.0021, "tokens") for name in FIGURES.split())
    token = token_view(random_head(13), query=3, key=3, title=LONG, notes=(LONG,))
    overlay = Overlay(np.zeros((48, 80, 3), np.uint8), *[np.full((3, 5), 1 / 15)] * 2, (1, 2))
    matched = [f"L{number}H11" for number in range(12)]
    course = curves(*((None, *[0.3 - 0.03 * number] * 9) for number in range(8)), **said)
    return {
        "head": heatmap(head, readings=readings, **said),
        "long head": heatmap(random_head(200), title="L0H1", readings=readings),
        "grid": grid([(layer, stack) for layer in range(4)], title=LONG, subtitle=LONG),
        "token": token,
        "map": head_map({0: [0.5] * 8, 1: [0.25] * 8}, "previous", title=LONG, unit="share"),
        "by layer": head_map({0: [12.3] * 8, 1: [5.25] * 8}, "distance", unit="tokens", by_layer=True),
        "change": head_map({0: [0.5] * 8}, "change", title=LONG, unit="thousandths of a nat"),
        "overlay": replace(token, label="a" * 18, overlays=(overlay,)),
        "written": replace(grid([(0, stack)], title=LONG), written=7),
        "written head": replace(heatmap(head, title=LONG), written=7),
        "parts": heatmap(random_head(3), **said),
        "matches": distance_map(np.full((12, 12), 0.3), matched, matched, **said, matched=True),
        "heads": all_heads(32),
        "depth": replace(grid((layer, alone) for layer in range(6)), each="layer"),
        "pair": pair(label="$x$"),
        "long pair": pair(40),
        "several heads": head_row(named[:3], title=LONG),
        "many heads": replace(head_row(named), notes=(LONG,)),
        "curves": course,
        "curves through points": replace(course, along="% of the cache that is kept"),
        "panels": Panels(title=LONG, parts=(pair(), heatmap(head, **said), course)),
        **{f"stack of {count}": stack_of(count, **said) for count in (10, 120)},
    }


def stack_of(count: int, **said) -> Stack:
    shares = np.random.default_rng(0).dirichlet(np.ones(7), count)
    parts = [f"{part} a part that has a name" for part in range(7)]
    return Stack(parts, ["unbelievably"] * count, shares, **said)


def boxes(figure) -> list[tuple[str, Bbox]]:
    """Every text that is seen, and where it stands."""
    figure.canvas.draw()
    drawn = figure.findobj(Axes)
    sides = [side for axes in drawn for side in (axes.xaxis, axes.yaxis) if not side.get_visible()]
    hidden = {text for side in sides for text in side.findobj(Text)}
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text not in hidden]
    return [(text.get_text(), text.get_window_extent()) for text in texts]


@pytest.mark.sweep(11)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", views())
def test_no_text_is_cut_off_or_overlaps(name: str, width: float) -> None:
    with drawing(views()[name], width=width) as (figure, _):
        assert figure.get_size_inches()[0] == pytest.approx(width)
        seen = boxes(figure)
        wide, tall = figure.bbox.size
    for text, box in seen:
        assert -1 < box.x0 < box.x1 < wide + 1, (text, box, wide)
        assert -1 < box.y0 < box.y1 < tall + 1, (text, box, tall)
    for (text, box), (other, theirs) in combinations(seen, 2):
        across = min(box.x1, theirs.x1) - max(box.x0, theirs.x0)
        down = min(box.y1, theirs.y1) - max(box.y0, theirs.y0)
        room = max(1.5, 0.3 * min(box.height, theirs.height))  # a box has room for letters that are not there
        assert across < 1.5 or down < room, (text, other)


@pytest.mark.parametrize("label", ["W" * 20, "m" * 17, "MAXIMUM@WARMUP"])
def test_labels_of_wide_letters_are_not_cut_off(label: str) -> None:
    axis = tokens(label, "a")
    with drawing(heatmap(weights(np.eye(2), axis, axis))) as (figure, _):
        seen, (wide, tall) = boxes(figure), figure.bbox.size
    assert min(box.x0 for _, box in seen) > 0
    assert max(box.x1 for _, box in seen) < wide
    assert max(box.y1 for _, box in seen) < tall


def test_chinese_column_labels_are_upright() -> None:
    axis = tokens("猫が", "cat")
    with drawing(heatmap(weights(np.eye(2), axis, axis))) as (figure, _):
        columns = [text for text in figure.axes[0].texts if text.get_gid() == "column"]
    assert [(text.get_text(), text.get_rotation()) for text in columns] == [("猫\nが", 0), ("cat", 90)]


def test_annotated_cells_need_room() -> None:
    field = bare(np.array([[1.0, 0.0], [0.25, 0.75]]))
    with drawing(heatmap(field), annotate=True) as (figure, warned):
        written = [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "weight"]
    assert (written, warned) == (["1.00", ".25", ".75"], [])
    large = heatmap(random_head(200))
    with pytest.raises(OutputError, match="weights do not fit"), drawing(large, annotate=True):
        pass


def test_picture_title_and_caption_options_apply() -> None:
    head = views()["head"]
    own = apply_title_options(head, PrintedOptions(title="A head"))
    assert (own.title, own.subtitle, len(own.readings)) == ("A head", LONG, len(FIGURES.split()))
    bare = apply_title_options(head, PrintedOptions(title="", no_caption=True))
    assert (bare.title, bare.subtitle, bare.readings, bare.notes) == ("", "", (), ())
    heads = apply_title_options(views()["heads"], PrintedOptions(title="All heads", no_caption=True))
    assert (heads.title, heads.notes) == ("All heads", ())
    titled = replace(head, title="L1H0 · own · “a text” · encoder attention")
    column = apply_title_options(titled, PrintedOptions(size=3.3))
    assert (column.title, column.subtitle, column.readings) == ("L1H0 · own", "", ())
    assert apply_title_options(titled, PrintedOptions(size=3.3, title="A head")).title == "A head"
    assert apply_title_options(titled, PrintedOptions(size=6)) == titled


@pytest.mark.parametrize("width", [3.25, 3.3, 5, 7])
def test_a_sentence_in_a_column_of_a_paper_has_every_label(width: float) -> None:
    sentence = "The old man walked slowly to the sea and the young man walked quickly to the small house"
    words = sentence.split()
    axis = tokens("[CLS]", *words, *words[:4], ".", "[SEP]")
    with drawing(heatmap(weights(np.eye(25), axis, axis)), width=width) as (figure, warned):
        seen = [text for text in figure.axes[0].texts if text.get_gid() in ("row", "column")]
    assert (len(seen), warned) == (50, [])
    assert all(5 <= text.get_fontsize() <= 9 for text in seen)


def test_labels_that_do_not_fit_name_words_if_they_join_pieces() -> None:
    axis = tuple(replace(each, word=at // 2) for at, each in enumerate(tokens(*["piece"] * 40)))
    with drawing(heatmap(weights(np.eye(40), axis, axis)), width=3.3) as (_, warned):
        assert warned[0].endswith("or a shorter text; --words merges them into 20 words")


def test_columns_without_a_label_are_counted_and_the_named_width_has_all():
    head = heatmap(random_head(35))
    with drawing(head, width=3.3) as (_, warned):
        pass
    (sentence,) = warned
    assert sentence.startswith("12 of 35 labels fit: all do with --size ")
    with drawing(head, width=float(re.search(r"--size ([0-9.]+)", sentence)[1])) as (figure, warned):
        assert sum(text.get_gid() == "column" for text in figure.axes[0].texts) == 35
    assert warned == []


@pytest.mark.parametrize(
    ("tokens", "options", "written"),
    [(16, {}, True), (17, {}, False), (16, {"size": 3.3}, False), (13, {"annotate": False}, False),
     (40, {"annotate": True}, True)],
)  # fmt: skip
def test_weights_of_few_tokens_are_written_into_a_saved_head(tokens: int, options, written: bool) -> None:
    assert writes_weights(heatmap(random_head(tokens)), PrintedOptions(**options)) == written


def test_hatched_cells_are_explained_below_the_map():
    masked = heatmap(bare(np.tri(3) / 3, np.tri(3, dtype=bool)))
    for view, explained in ((masked, True), (heatmap(bare(np.eye(3))), False)):
        with drawing(view) as (figure, _):
            assert any("hatched: masked" in text.get_text() for text in figure.texts) == explained


@pytest.fixture
def drawn(monkeypatch) -> Mock:
    """Counts the heads that are drawn in full."""
    monkeypatch.setattr(draw, "SharedSheet", Mock(wraps=draw.SharedSheet))
    return draw.SharedSheet


def picture(head: int, count: int = 5, causal: bool = True, **changes):
    words = {"title": f"L0H{head}", "subtitle": "x" * (head + 1), "notes": (f"note {head}",)}
    words["readings"] = (NamedScore("entropy", 0.1 * head, 1.5, "nats"),)
    return replace(heatmap(random_head(count, seed=head, causal=causal), **words), **changes)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("width", "dpi"), [(None, 60), (1, 150), (3.3, 150), (10, 150)])
def test_album_redraws_cells_alone_with_identical_files(width, dpi, tmp_path, drawn) -> None:
    album = Album(dpi=dpi, width=width)
    for head in range(3):
        scaled = {"scale": "head", "limits": (0.0, 0.1 * head)} if head % 2 else {}
        view = picture(head, **scaled, title=(LONG if width else "") + f"L0H{head}")
        assert album.save(view, tmp_path / f"{head}.png") == []
        save_image(view, tmp_path / "alone.png", dpi=dpi, width=width)
        assert (tmp_path / f"{head}.png").read_bytes() == (tmp_path / "alone.png").read_bytes(), head
    assert drawn.call_count == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("count", 6), ("causal", False), ("title", ""), ("notes", ("a note", "another"))),
        *(("scale", "row"), ("signed", True)),
    ],
)
def test_album_redraws_views_that_differ_beyond_cells(name, value, tmp_path, drawn) -> None:
    album, other = Album(dpi=60), picture(1, **{name: value})
    album.save(picture(0), tmp_path / "first.png")
    album.save(other, tmp_path / "second.png")
    save_image(other, tmp_path / "alone.png", dpi=60)
    assert (tmp_path / "second.png").read_bytes() == (tmp_path / "alone.png").read_bytes()
    assert drawn.call_count == 2


BY_ITSELF = "this matplotlib sets every letter by itself"
TITLE = "L2H1 · own · “The cat sat on the mat because…” · encoder attention"


def inches(text: str, size: float, weight: str = "normal") -> float:
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


def test_wrapped_lines_fit_width_and_short_title_stays_whole():
    for width, weight in product((3.2, 4.0, 5.5), ("normal", "bold")):
        for line in wrap_inches(TITLE, 11, width, bold=weight == "bold"):
            assert inches(line, 11, weight) <= width - 0.3
    assert inches(TITLE, 9, "bold") <= BOLD_WIDTH * inches(TITLE, 9)
    assert wrap_inches(TITLE, 11, inches(TITLE, 11) * 1.02 + 0.34) == [TITLE]
    assert len(wrap_inches(TITLE, 11, inches(TITLE, 11))) == 2


def test_wrapped_lines_are_balanced_without_leading_punctuation():
    lines = wrap_inches(TITLE, 11, 3.3)
    assert lines == ["L2H1 · own · “The cat sat on the", "mat because…” · encoder attention"]
    parts = ["L2H1 · own · “The cat sat on the mat because…”", "encoder attention"]
    assert wrap_inches(TITLE, 11, 4.2) == parts
    chinese = "L2H1 · “猫は疲れていたのでマットの上に座った。” · encoder attention"
    for title, width in product((TITLE, chinese), (3, 3.2, 3.3, 3.4, 3.5, 3.6, 4, 5)):
        lines = wrap_inches(title, 11, width)
        assert not any(line[0] in "。”·" or line[-1] == "·" for line in lines)


@pytest.mark.skipif(not SHAPES_TEXT, reason=BY_ITSELF)
def test_rtl_label_in_title_is_isolated():
    assert wrap_title("שלום (token 1) looks at", 9, 4, label="שלום") == "\u2068שלום\u2069 (token 1) looks at"
    assert wrap_title("cat (token 1) looks at", 9, 4, label="cat") == "cat (token 1) looks at"
    assert wrap_title("a\u2068b", 9, 4) == "a‹2068›b"


@pytest.mark.skipif(not SHAPES_TEXT, reason=BY_ITSELF)
def test_wrapped_line_after_rtl_text_runs_left_to_right():
    title = "L2H1 · own · “جلست القطة على السجادة لأنها كانت متعبة…” · encoder attention"
    lines = wrap_title(title, 11, 3.3).split("\n")
    assert len(lines) > 1
    assert lines[-1].endswith(" · encoder attention")
    begun, whole = ink(lines[-1].removesuffix("encoder attention")), ink(lines[-1])
    wide = np.flatnonzero(begun.any(0)).max()
    assert (whole[:, :wide] == begun[:, :wide]).all()
    assert whole[:, wide:].any()


def test_long_title_ends_in_ellipsis_and_long_word_is_cut():
    long = wrap_title(" ".join([TITLE] * 4), 11, 3.2).split("\n")
    assert len(long) == TITLE_LINES
    assert long[-1].endswith("…")
    pieces = wrap_inches("x" * 300, 11, 3.2)
    assert "".join(pieces) == "x" * 300
    assert all(inches(piece, 11) <= 2.9 for piece in pieces)


@pytest.mark.parametrize("text", ["a" * 20_000, "日" * 20_000, "ab " * 7_000, f"{'a' * 9_999} {'b' * 9_999}"])
def test_long_texts_are_wrapped_in_linear_time(text: str, monkeypatch) -> None:
    measure, measured = sheet._width, []
    monkeypatch.setattr(sheet, "_width", lambda part: measured.append(len(part)) or measure(part))
    lines = wrap_inches(text, 6.5, 6.0)
    assert sum(measured) <= 3 * len(text)  # characters
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrap_title(text, 11.0, 6.0).count("\n") == 2
