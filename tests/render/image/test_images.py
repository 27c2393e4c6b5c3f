"""Images by their content: the array is the head, row 0 is on top, labels and limits are right."""

import io
import warnings
from dataclasses import replace
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from fontTools.ttLib import TTFont
from matplotlib import font_manager
from matplotlib.image import imread
from matplotlib.path import Path
from PIL import Image

from attnscope.axes import places, weights
from attnscope.errors import OutputError, SelectionError
from attnscope.render.colour import role_colour, steps, table
from attnscope.render.image import FORMATS, drawing, encode, encode_png, save_image
from attnscope.render.image import sheet as fonts
from attnscope.render.image.maps import MASKED_COLOUR, mosaic
from attnscope.render.image.sheet import LABEL_COLUMN, LABEL_PITCH, ROW, labels
from attnscope.views import (
    Curve,
    Curves,
    NamedScore,
    RoleMap,
    Stack,
    grid,
    head_map,
    head_row,
    heatmap,
    token_view,
)
from attnscope.views.charts import GraphEdge, GraphNode, LayerGraph
from tests.render.screen import all_heads, bare, distance_table, pair, random_head, tokens


def map_of(figure):
    return figure.axes[0].images[0]


def labels_of(figure, side: str | None) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts if text.get_gid() == side]


def tick_labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("head", [random_head(5), random_head(3, 8), random_head(4, causal=True)], ids=str)
def test_heatmap_has_row_0_on_top_with_readings_and_notes(head) -> None:
    said = {"readings": (NamedScore("entropy", 1.25, 2.0, "nats"),), "notes": ("untrained",)}
    with drawing(heatmap(head, title="L0H1", **said)) as (figure, warned):
        image = map_of(figure)
        np.testing.assert_array_equal(image.get_array(), head.values)
        np.testing.assert_array_equal(np.ma.getmaskarray(image.get_array()), ~head.allowed)
        assert image.get_clim() == heatmap(head).limits
        assert image.origin == "upper"
        bottom, top = figure.axes[0].get_ylim()
        assert bottom > top  # row 0 is above row 1
        assert labels_of(figure, "column") == [place.label for place in head.keys]
        assert labels_of(figure, "row") == [place.label for place in head.queries]
        texts = {text.get_gid(): text.get_text() for text in figure.texts}
    notes = "untrained" + "\nhatched: masked" * (not head.allowed.all())
    told = {"name": "entropy", "value": "1.25", "baseline": "nats (baseline 2.00)", "notes": notes}
    assert texts.items() >= told.items()
    assert "L0H1" in texts.values()
    assert warned == []
    with drawing(heatmap(head, signed=True)) as (figure, _):
        image = map_of(figure)
    assert image.get_clim() == heatmap(head, signed=True).limits
    assert image.get_cmap().name == "attnscope-tide"


@pytest.mark.parametrize("scale", ["head", "row"])
@pytest.mark.parametrize("least", [0.0, 0.2])
def test_png_pixels_have_the_colours_of_the_weights(scale: str, least: float) -> None:
    head = random_head(6, causal=True)
    view = heatmap(head, scale=scale, min_weight=least)
    with drawing(view, cmap="viridis") as (figure, _):
        assert map_of(figure).get_clim() == ((0, 1) if scale == "row" else view.limits)
        assert figure.axes[0].patch.get_hatch()  # behind masked cells
        box = figure.axes[0].get_position()
        picture = imread(io.BytesIO(encode(figure, "png")))[..., :3]
    tall, wide = picture.shape[:2]
    shares = (np.arange(6) + 0.5) / 6
    rows = np.round((1 - box.y1 + box.height * shares) * tall).astype(int)
    columns = np.round((box.x0 + box.width * shares) * wide).astype(int)
    found, masked, hidden = picture[np.ix_(rows, columns)], ~head.allowed, view.hidden
    assert np.ptp(found[masked], -1).max() < 0.02  # grey, as no weight is
    assert found[masked].min() > 0.7
    assert (found[hidden] == 1).all()  # the white of the paper
    drawn, colours = ~(masked | hidden), table("viridis")[steps(view.levels())] / 255
    np.testing.assert_allclose(found[drawn], colours[drawn], atol=2.5 / 255)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("cmap", ["ember", "viridis", "gray"])
def test_marked_cells_are_outlined_in_black_and_white(cmap: str) -> None:
    head, marks = random_head(5), ((1, 3), (3, 0))
    edges, plain = [], []
    for found, each in ((edges, marks), (plain, ())):
        with drawing(heatmap(head, marks=each), width=3.3, cmap=cmap) as (figure, _):
            box = figure.axes[0].get_position()
            picture = imread(io.BytesIO(encode(figure, "png", 600)))[..., :3]
        tall, wide = picture.shape[:2]
        for row, column in np.ndindex(5, 5):  # one row of dots, from inside a cell over its left edge
            y = round((1 - box.y1 + box.height * (row + 0.5) / 5) * tall)
            x = box.x0 * wide + box.width * wide * column / 5
            dots = picture[y, int(x) - 12 : int(x) + 12]
            found.append((dots == 1).all(-1).any() and (dots == 0).all(-1).any())
    own = [at for at in range(25) if edges[at] and not plain[at]]
    assert {divmod(at, 5) for at in own} == {(1, 3), (1, 4), (3, 0), (3, 1)}  # the left edges and the right


@pytest.mark.parametrize("text", ["$a^2$", "[CLS]", "<s>", "_x_", "a\\b", "%d", "&amp;", "$\\frac{"])
def test_token_labels_are_literal(text: str) -> None:
    head = weights(np.eye(2), tokens(text, "b"), tokens(text, "b"))
    with drawing(heatmap(head, title=text, notes=(text,))) as (figure, _):
        shown = [*figure.texts, *figure.axes[0].texts]
        assert not any(label.get_parse_math() for label in shown)
        assert labels_of(figure, "column")[0] == text
        assert encode(figure, "svg")


@pytest.mark.parametrize("count", [8, 40, 100, 512])
def test_labels_do_not_overlap_and_are_numbered(count: int) -> None:
    axis = places(tokens(*(f"t{i}" for i in range(count))))
    with drawing(heatmap(bare(np.eye(count)))) as (figure, _):
        tall = figure.get_size_inches()[1] * figure.axes[0].get_position().height
    shown, texts, size = labels(axis, tall / count)
    pitch = tall / count * 72 * (shown[1] - shown[0])
    assert pitch >= LABEL_PITCH - 1e-9
    assert 6 <= size <= pitch
    assert texts[1] == (f"{shown[1]} t{shown[1]}" if len(shown) < count else "t1")


def test_grid_is_one_image_with_a_tile_per_head() -> None:
    heads = np.stack([random_head(14, seed=seed).values for seed in range(3)])
    causal = np.tril(np.ones((14, 14), bool))
    view = grid([(0, bare(heads * causal, causal)), (2, bare(heads[:2]))])
    with drawing(view) as (figure, _):
        assert len(figure.axes) == 2  # the tiles and the colour bar
        picture = map_of(figure).get_array()
        assert labels_of(figure, "column") == ["H0", "H1", "H2"]
        assert labels_of(figure, "row") == ["L0", "L1", "L2"]
    flat, (tall, wide, gap) = mosaic(view, "ember")
    np.testing.assert_array_equal(picture, flat)
    assert (tall, wide) == (14, 14)
    for row, layer in ((0, 0), (2, 1)):
        for head in range(view.layers[layer].heads):
            expected = table("ember")[steps(view.layers[layer].values[head])]
            expected[view.layers[layer].masked[head]] = MASKED_COLOUR
            top, left = row * (tall + gap), head * (wide + gap)
            np.testing.assert_array_equal(flat[top : top + tall, left : left + wide, :3], expected)
    assert (flat[tall + gap : 2 * tall + gap] == 255).all()  # layer 1 is a hole
    assert (flat[..., 3] == 255).all()


def test_token_bars_are_sorted_on_terminal_scale() -> None:
    axis = tokens("a", "b", "c")
    head = weights(np.array([[0.2, 0.7, 0.1], [0, 1, 0], [1, 0, 0]]), axis, axis)
    with drawing(token_view(head, query=0, key=0)) as (figure, _):
        looks, looked = figure.axes
        assert [bar.get_width() for bar in looks.patches] == [0.7, 0.2, 0.1]
        assert tick_labels(looks.yaxis) == ["b 1", "a 0", "c 2"]
        assert tick_labels(looked.yaxis) == ["c 2", "a 0", "b 1"]
        assert looks.get_xlim() == looked.get_xlim() == (0, 1)
        assert looks.get_ylim()[0] > looks.get_ylim()[1]
    view = token_view(bare(np.full((8, 8), 0.125)), query=2, key=2)
    with drawing(view) as (figure, _):
        assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim() == (0, view.full_bar) == (0, 0.2)
        assert tick_labels(figure.axes[0].xaxis) == ["0", "0.1", "0.2"]


def test_head_map_shows_its_values() -> None:
    view = head_map({0: [0.25, 0.5], 2: [1.0]}, "confidence", limits=(0, 1))
    with drawing(view) as (figure, _):
        np.testing.assert_array_equal(map_of(figure).get_array().filled(np.nan), view.values)
        assert labels_of(figure, "row") == ["L0", "L2"]
        assert labels_of(figure, None) == ["0.25", "0.50", "1.00"]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("form", FORMATS)
def test_image_files_are_byte_identical_on_repeat(form: str, tmp_path) -> None:
    views = heatmap(random_head(5, causal=True), title="L0H1"), all_heads(30), distance_table(8), pair()
    first, second = tmp_path / f"first.{form}", tmp_path / f"second.{form}"
    for view in views if form == "svg" else views[:1]:
        assert save_image(view, first) == save_image(view, second) == []
        assert first.read_bytes() == second.read_bytes()
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "jpg": b"\xff\xd8"}[form]
    assert first.read_bytes().startswith(start)
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.name, second.name]


def test_user_matplotlib_style_has_no_effect_and_is_restored(tmp_path) -> None:
    view = heatmap(random_head(4))
    save_image(view, tmp_path / "plain.png")
    with matplotlib.rc_context({"font.size": 30, "text.parse_math": True, "image.origin": "lower"}):
        save_image(view, tmp_path / "own.png")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "own.png").read_bytes() == (tmp_path / "plain.png").read_bytes()


def test_scripts_without_a_font_are_named_once(monkeypatch) -> None:
    monkeypatch.setattr(fonts, "_font_files", lambda: {})
    view = heatmap(weights(np.eye(2), tokens("猫", "b"), tokens("a", "b")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (view, head_row([view])):
            with drawing(each) as (figure, (warned,)):
                encode(figure, "png", 40)
            assert warned.startswith("no installed font can draw CJK (猫), which appear as boxes: install ")
            assert "--font" in warned
    chosen, (sentence,) = fonts.families(["猫が", "Straße", "\U0001f408"])
    assert chosen == [fonts.BASE_FONT]
    assert "draw CJK (猫) and Hiragana (が) and emoji and symbols (\U0001f408), which" in sentence
    assert "install Noto Emoji and Noto Sans CJK" in sentence


def test_system_fonts_with_the_script_are_used_automatically(tmp_path, monkeypatch):
    found = {"Some Sans": "猫", "A Serif": "猫犬"}
    paths = [renamed_font(tmp_path / f"{family}.ttf", family, has) for family, has in found.items()]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: paths)
    fonts._font_files.cache_clear()
    try:
        made = {}
        for label in ("猫", "猫猫", "鳥"):
            view = heatmap(weights(np.eye(2), tokens(label, "犬"), tokens("a", "b")))
            with drawing(view) as (figure, warned):
                made[label] = encode(figure, "png", 100), [sentence.split(",")[0] for sentence in warned]
        assert made["猫"][0] != made["猫猫"][0]
        assert [told for _, told in made.values()] == [[], [], ["no installed font can draw CJK (鳥)"]]
        assert fonts.families(["cat"], "A Serif")[0][0] == "A Serif"
        for text, chosen in (("cat", []), ("猫", ["Some Sans"]), ("猫犬", ["Some Sans", "A Serif"])):
            assert fonts.families([text]) == (["DejaVu Sans", *chosen], [])
    finally:
        fonts._font_files.cache_clear()


def renamed_font(path, family: str, characters: str):
    """The font that matplotlib brings, under another name, with these characters alone: each an A."""
    font = TTFont(font_manager.findfont(fonts.BASE_FONT))
    for part in font["cmap"].tables:
        part.cmap = dict.fromkeys(map(ord, characters), "A")
    for name in font["name"].names:
        name.string = family if name.nameID in (1, 4, 16) else str(name)
    font.save(path)
    return str(path)


def test_unwritable_output_is_explained(tmp_path) -> None:
    view = heatmap(random_head(2))
    (tmp_path / "folder.png").mkdir()
    for name, options, error, told in (
        ("a.gif", {}, OutputError, r"'.gif' is not an image format; there are png, svg, pdf"),
        ("a", {}, OutputError, "its name has no suffix"),
        ("nowhere/a.png", {}, OutputError, "there is no folder"),
        ("folder.png", {}, OutputError, "it is a folder"),
        ("a.png", {"font": "Nosuch Sans"}, SelectionError, "no font 'Nosuch Sans' is installed"),
        ("a.png", {"cmap": "rainbo"}, SelectionError, "no colour map"),
    ):
        with pytest.raises(error, match=told):
            save_image(view, tmp_path / name, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize("count", [4, 12, 30])
def test_map_fills_a_narrow_column(count: int) -> None:
    for view in (heatmap(random_head(count)), grid([(0, bare(np.eye(count)[None]))])):
        with drawing(view, width=3.3) as (figure, _):
            assert figure.get_figwidth() == pytest.approx(3.3)
            assert figure.axes[0].get_position().width >= 0.44


def test_png_has_colours_and_dpi_but_no_alpha_or_other_metadata() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 4), np.uint8)
    png = encode_png(SimpleNamespace(buffer_rgba=lambda: pixels), 300)
    np.testing.assert_array_equal(np.round(imread(io.BytesIO(png)) * 255), pixels[..., :3])
    with Image.open(io.BytesIO(png)) as image:
        assert set(image.info) == {"dpi"}
        assert [round(dots, 1) for dots in image.info["dpi"]] == [300, 300]


def test_generated_tokens_are_bold_with_a_line_above_thumbnails():
    head = random_head(15, causal=True)
    with drawing(replace(heatmap(head), written=7)) as (figure, _):
        labels = [text for text in figure.axes[0].texts if text.get_gid() in (ROW, LABEL_COLUMN)]
        bold = [text.get_fontweight() == "bold" for text in labels]
        assert bold == [place.start >= 7 for place in head.queries] * 2
        assert any("bold tokens: generated by the model" in text.get_text() for text in figure.texts)
    stack = replace(head, values=np.stack([head.values] * 4))
    view = replace(grid([(layer, stack) for layer in range(2)]), written=7)
    with drawing(view) as (figure, _):
        (lines,) = figure.axes[0].collections
        spans = [path.vertices[:, 0] for path in lines.get_paths()]
        assert len(spans) == sum(layer.heads for layer in view.layers)
        starts, stops = np.array(spans[: view.heads]).T + 0.5
        assert starts[0] / stops[0] == pytest.approx(7 / 15)
        np.testing.assert_allclose(stops - starts, stops[0] - starts[0])
        assert (starts[1:] > stops[:-1]).all()
    with drawing(replace(view, written=None)) as (figure, _):  # no model wrote
        assert not figure.axes[0].collections
        assert not any("written" in text.get_text() for text in figure.texts)


def curves(*values: tuple[float | None, ...], **said) -> Curves:
    drawn = tuple(Curve(f"L{number}H10", one, (0.2,) * len(one)) for number, one in enumerate(values))
    return Curves("previous", "share", tuple(range(0, 10 * len(values[0]) + 1, 10)), drawn, **said)


def test_curves_are_steps_on_one_scale_with_baseline():
    view = curves((None, 0.4, 0.3), (0.1, 0.2, 0.25))
    with drawing(view) as (figure, _):
        shown = [[patch.get_data() for patch in axes.patches] for axes in figure.axes]
        limits = {axes.get_ylim() for axes in figure.axes}
    for (stairs, baseline), curve in zip(shown, view.curves, strict=True):
        np.testing.assert_array_equal(stairs.values, np.array(curve.values, float))
        assert tuple(stairs.edges) == view.edges
        assert list(baseline.values) == [0.2] * 3
    assert limits == {(0.0, 0.5)}  # a round share that holds every figure and the baseline
    assert [curves(values).top for values in ((0.02, 0.09), (0.7, 0.1))] == [0.2, 1.0]


def test_each_further_curve_adds_less_than_half_an_inch():
    heights = []
    for count in (1, 6):
        with drawing(curves(*[(0.1, 0.2)] * count)) as (figure, _):
            heights.append(figure.get_figheight())
    assert 0.3 < (heights[1] - heights[0]) / 5 < 0.5


def test_point_values_are_lines_over_one_axis():
    view = replace(curves((None, 0.4, 0.3), (0.1, 0.2, 0.25)), along="% of the cache")
    with drawing(view) as (figure, _):
        (axes,) = figure.axes
        lines = [(line.get_label(), line.get_xdata(), line.get_ydata()) for line in axes.lines]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("% of the cache", "previous, share")
    assert lines.pop()[0] == "uniform attention"
    for (name, across, up), curve in zip(lines, view.curves, strict=True):
        assert (name, tuple(across)) == (curve.head, view.edges[:-1])
        np.testing.assert_array_equal(up, np.array(curve.values, float))


def test_stacked_bars_are_as_wide_as_their_shares():
    shares = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    view = Stack(("[CLS]", "text", "written"), ("was", "a"), shares)
    with drawing(view) as (figure, _):
        bars = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches]
        letters = [text.get_text() for text in figure.axes[0].texts]
        said = [text.get_text() for text in figure.texts]
    left, wide = np.array(bars).reshape(3, 2, 2).T
    assert np.allclose(wide, shares)
    assert np.allclose(left, shares.cumsum(1) - shares)
    assert "A" in letters
    assert said[0].replace("\n", " ") == view.legend
    assert view.legend.startswith("A [CLS] 0.30 · B text 0.2")


def images(figure):
    return [axes.images[0] for axes in figure.axes if axes.images]


def test_distance_table_and_plane_hold_their_values():
    view = all_heads(20)
    with drawing(view) as (figure, warnings):
        assert warnings == []
        assert np.allclose(images(figure)[0].get_array(), view.table.nearness())
        plane_axes = next(axes for axes in figure.axes if len(axes.texts) > 20 and axes.collections)
        assert np.allclose(plane_axes.collections[0].get_offsets(), view.points)
        assert {text.get_text() for text in plane_axes.texts} >= set(view.names)
        low, high = plane_axes.get_xlim()
        assert low < view.points[:, 0].min()
        assert view.points[:, 0].max() < high
        frames = [patch.get_bbox() for patch in figure.axes[0].patches]  # around the groups
        assert [(frame.x0, frame.width) for frame in frames] == [(-0.5, 6), (5.5, 14)]
    with drawing(view.table) as (alone, _):  # as that of two models
        assert np.allclose(images(alone)[0].get_array(), view.table.nearness())


def test_head_pair_is_drawn_with_its_difference():
    view = pair()
    with drawing(view) as (figure, _):
        one, other, difference = [image for image in images(figure) if image.get_array().shape == (5, 5)]
        assert np.allclose(one.get_array(), view.maps[0].values)
        assert np.allclose(difference.get_array(), one.get_array() - other.get_array())
        low, high = difference.get_clim()
        assert low == -high
        assert difference.cmap.name != one.cmap.name


def test_graph_edges_avoid_other_nodes():
    """The straight lines would run through several; the arcs are those that matplotlib draws."""
    columns = {"embeddings": 0, "L0H1": 1, "L0H2": 1, "L0H3": 1, "L1H0": 2, "L2H1": 3, "L2H2": 3}
    columns["prediction"] = 4
    ends = [("embeddings", "prediction"), ("embeddings", "L1H0"), ("embeddings", "L2H1"), ("L0H1", "L2H2")]
    ends += [("L0H1", "prediction"), ("L0H2", "L2H1"), ("L0H3", "L1H0"), ("L1H0", "prediction")]
    nodes = tuple(GraphNode(name, column, "role", 0.5) for name, column in columns.items())
    view = LayerGraph(nodes, tuple(GraphEdge(*both, 0.3, "K") for both in ends))
    middles, straight = view.places(), 0
    with drawing(view) as (figure, _):
        figure.canvas.draw()
        (axes,) = (each for each in figure.axes if each.patches)
        boxes = {text.get_text(): text.get_bbox_patch() for text in axes.texts if text.get_bbox_patch()}
        boxes = {name: box.get_window_extent() for name, box in boxes.items()}
        assert boxes.keys() == columns.keys()
        letters = [text for text in axes.texts if text.get_text() == "K"]
        for both, arc, letter in zip(ends, axes.patches, letters, strict=True):
            path = arc.get_path().transformed(arc.get_transform())
            line = Path(axes.transData.transform([middles[end] for end in both]))
            others = [box for name, box in boxes.items() if name not in both]
            assert not any(path.intersects_bbox(box, filled=False) for box in others), both
            straight += any(line.intersects_bbox(box, filled=False) for box in others)
            near = letter.get_window_extent().padded(2)
            assert path.intersects_bbox(near, filled=False)
    assert straight >= 3


def test_roles_have_their_colours_and_letters_and_replace_tiny_thumbnails():
    roles = (("previous", "weak self", "none"), ("first", "broad"))
    view = RoleMap((0, 3), roles, title="a model")
    with drawing(view) as (figure, _):
        (cells,) = images(figure)
        white = (255, 255, 255)
        colours = [[role_colour(role) or white for role in row] for row in view.roles]
        assert cells.get_array().tolist()[0] == [list(colour) for colour in colours[0]]
        assert cells.get_array().tolist()[1] == [*(list(colour) for colour in colours[1]), list(white)]
        letters = [text.get_text() for text in figure.axes[0].texts]
        assert letters == ["P", "s", "·", "F", "B", "H0", "H1", "H2", "L0", "L3"]
        legend = [text.get_text() for text in figure.axes[1].texts]
        assert {"previous 1", "weak self 1", "first 1", "broad 1", "none 1"} <= {*legend}
    thumbnails = grid([(0, bare(np.stack([random_head(13).values] * 40)))], title="a model", roles=view)
    for width, tiny in ((3.0, True), (8.0, False)):
        with drawing(thumbnails, width=width) as (figure, _):
            assert (len(images(figure)[0].get_array()[0]) == 3) == tiny


@pytest.mark.parametrize("width", [None, 3.4, 7.0])
@pytest.mark.parametrize("count", [20, 72, 144, 400])
def test_names_of_many_heads_are_thinned_rather_than_tiny(count, width):
    with drawing(distance_table(count), width=width) as (figure, _):
        texts = [text for text in figure.axes[0].texts if text.get_text().startswith("L")]
        down = [text for text in texts if text.get_gid() == ROW]
        assert min(text.get_fontsize() for text in texts) >= 6
        places = [text.get_position()[1] for text in down]
        assert [text.get_text() for text in down] == [f"L{at // 12}H{at % 12}" for at in places]
        assert len({*np.diff(places)}) == 1
        height = figure.axes[0].get_window_extent().height / figure.dpi * 72
        assert np.diff(places)[0] * height / count >= 7.1
