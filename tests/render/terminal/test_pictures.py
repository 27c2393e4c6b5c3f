"""Terminal pictures, read back from the characters that reach the terminal."""

import io
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from attnscope.axes import weights
from attnscope.render.terminal import PrintedView, print_views
from attnscope.render.terminal.surface import Surface
from attnscope.views import HeadRank, NamedScore, Ranking, distance_map, grid, head_map, heatmap, token_view
from tests.render.screen import (
    aligned,
    all_heads,
    bare,
    coloured,
    distance_table,
    expected_colours,
    pair,
    pixels,
    printed,
    random_head,
    tokens,
    widths,
)


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def every_view(count: int) -> list:
    head = random_head(count, causal=True)
    stack = bare(np.stack([head.values] * 12), head.allowed)
    return [
        heatmap(head, title="L0H1", subtitle="a model", readings=(NamedScore("entropy", 1.5, 2.0, "nats"),)),
        grid([(layer, stack) for layer in (0, 2)], title="Every head"),
        token_view(head, query=0, key=0, title="L0H1"),
        head_map({0: head.values[0].tolist(), 1: [0.5]}, "confidence"),
        Ranking((HeadRank("L0H1", "looks at the token before", "attnscope show cat"),), title="Worth a look"),
        all_heads(count).table,
        pair(count),
        aligned(*((f"word{i}", None if i % 5 == 0 else f"word{i}") for i in range(count))),
    ]


TABLES = [all_heads(count).table for count in (3, 32, 41, 72, 144, 400)]


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("views", [*map(every_view, (2, 12, 40, 120)), TABLES], ids=len)
@pytest.mark.parametrize("colour", [None, "truecolor"])
def test_lines_fit_terminal_and_pipe_has_no_codes_or_trailing_spaces(
    width: int, views: list, colour: str | None
) -> None:
    for view in views:
        text = printed(view, width=width, colour=colour)
        assert max(widths(without_codes(text))) <= width
        assert colour or not re.search(r"\x1b| $", text, re.MULTILINE)


def test_without_colour_shades_show_the_values() -> None:
    for view in every_view(12):
        assert not re.search(r"\x1b\[[\d;]*[34]8;", printed(view, colour="truecolor", no_color=True))
        assert not re.search(r"\x1b\[[\d;]*[34]8;", printed(view, colour="truecolor", plain=True))
        assert not re.search(r"\x1b\[(3\d|4\d|9\d)", printed(view, colour="standard"))
    for values, width, expected in (
        ([0.02, 0.1, 0.3, 0.6, 0.9], 24, "0 0   ░░▒▒▓▓██"),
        ([0.004, 0.41, 0.986], 80, "0 0      ▒ 41 █ 99"),  # cells hold per cent
    ):
        text = printed(heatmap(bare(np.array([values]))), width=width)
        assert [line for line in text.splitlines() if line.startswith("0 0")] == [expected]


@pytest.mark.parametrize("colour", [None, "truecolor"])
@pytest.mark.parametrize("count", [5, 36])
def test_marked_cells_end_in_a_mark(count: int, colour: str | None) -> None:
    head, marks = random_head(count), ((1, 3), (3, 0))
    text = without_codes(printed(heatmap(head, marks=marks), width=140, colour=colour))
    said = " ".join(text.split())
    assert "◂ marked" in said
    rows = [line for line in text.splitlines() if re.match(" *words* [0-9]", line)]
    found = [(at, line.index("◂")) for at, line in enumerate(rows) if "◂" in line]
    assert [at for at, _ in found] == [1, 3]
    cell = (4 if colour else 5) if count == 5 else 2
    assert found[0][1] - found[1][1] == 3 * cell  # columns 3 and 0
    large = without_codes(printed(heatmap(random_head(90), marks=marks), colour="truecolor"))
    assert "marks need larger cells, or -o FILE.png" in " ".join(large.split())


@pytest.mark.parametrize("count", [20, 25, 37, 60])
@pytest.mark.parametrize("pinned", [None, 7])
def test_numbered_labels_are_on_the_left_only(count: int, pinned: int | None) -> None:
    shown = printed(heatmap(random_head(count)), width=80, colour="truecolor", marked=pinned)
    plain = without_codes(shown)
    numbers = [int(number) for number in re.findall(r"^ *words* (\d+)\b", plain, re.MULTILINE)]
    two_a_line = [pinned if at + 1 == pinned else at for at in range(0, count, 2)]
    assert numbers == (list(range(count)) if count <= 35 else two_a_line)
    assert ("the upper one labelled" in " ".join(plain.split())) == (count > 35)


@pytest.mark.parametrize("count", [5, 20, 33, 50])
@pytest.mark.parametrize("hidden", [0.0, 0.9])
def test_cells_have_the_colours_of_weights_with_row_0_on_top(count: int, hidden: float) -> None:
    head = random_head(count, causal=True)
    view = heatmap(head, scale="head", min_weight=hidden / count)
    cell = 4 if count * 4 <= 100 else 2 if count <= 40 else 1
    halves = (0,) if cell > 1 else (0, 1)
    lines = coloured(view, width=120)[: -(-count // len(halves))]  # the colour bar follows
    left = min(i for i, pixel in enumerate(lines[0]) if pixel != (None, None))
    rows = [[pixel[half] for pixel in line[left::cell][:count]] for line in lines for half in halves][:count]
    blank = ~head.allowed | (head.values < hidden / count)
    colours = expected_colours(view.levels()).tolist()
    for i, j in np.ndindex(count, count):
        assert rows[i][j] == (None if blank[i, j] else tuple(colours[i][j])), (i, j)


@pytest.mark.parametrize(("count", "large", "side_by_side"), [(5, False, 12), (13, True, 4)])
@pytest.mark.parametrize("closed", [False, True])
def test_thumbnails_have_the_colours_of_their_heads(count, large, side_by_side, closed) -> None:
    heads = np.stack([random_head(count, seed=seed).values for seed in range(12)])
    open_ = np.ones(heads.shape, bool)
    if closed:  # each head's own keys, whose weights are not 0
        open_ = np.random.default_rng(0).random(heads.shape) < 0.6
    view = grid([(0, bare(heads, open_))], large=large)
    lines = coloured(view)[: -(-count // 2)]
    for head, rows in enumerate(expected_colours(heads)[:side_by_side]):
        left = 3 + (count + 1) * head
        for i, row in enumerate(rows.tolist()):
            found = [pixel[i % 2] for pixel in lines[i // 2][left : left + count]]
            colours = zip(row, open_[head, i], strict=True)
            assert found == [tuple(colour) if seen else None for colour, seen in colours], (head, i)
    assert all(pixel[1] is None for pixel in lines[-1][3 : 3 + count])  # half a line of air
    assert ("blank: masked" in printed(view, colour="truecolor")) == closed


@pytest.mark.parametrize("closed", [False, True])
def test_pipe_thumbnails_show_masked_cells_as_dots(closed) -> None:
    past = np.tri(5, dtype=int) | (not closed)
    text = printed(grid([(0, bare(np.ones((1, 5, 5)), past > 0))], large=True))
    lines = [line[3:] for line in text.splitlines() if line.startswith(("L0 █", "   █"))]
    wide = len(lines[0]) // 5  # columns of a key
    shown = [["·█"[seen] * wide for seen in row] for row in past.tolist() for _ in range(len(lines) // 5)]
    assert lines == ["".join(row) for row in shown]
    assert ("·: masked" in " ".join(text.split())) == closed


@pytest.mark.parametrize(
    ("layers", "heads", "count"),
    [(6, 12, 5), (6, 12, 512), (12, 12, 13), (12, 12, 60), (24, 16, 60), (24, 16, 5), (32, 32, 13)],
)
def test_all_heads_fit_on_one_screen(layers: int, heads: int, count: int) -> None:
    stack = bare(np.stack([random_head(count, causal=True).values] * heads))
    words = {"title": "gpt2 · “The cat sat…”", "subtitle": "kernel: sdpa"}
    view = grid([(layer, stack) for layer in range(layers)], **words)
    why, command = "looks at the token before", "attnscope show 'The cat' --head L{}H0"
    ranked = tuple(HeadRank(f"L{n}H0", why, command.format(n)) for n in range(5))
    colours = {"force_terminal": True, "color_system": "truecolor", "legacy_windows": False}
    console = Console(file=io.StringIO(), width=80, height=24, **colours)
    print_views([view, Ranking(ranked, title="Worth a look")], console)
    text = without_codes(console.file.getvalue())
    assert len(text.splitlines()) <= 24 + max(layers - 12, 0)
    assert max(widths(text)) <= 80
    assert re.findall(r"^L\d+(?= )", text, re.MULTILINE)[:layers] == [f"L{n}" for n in range(layers)]
    assert "Worth a look" in text
    assert "--head L0H0" in text
    assert ("taller than the screen" in text) == (layers > 12)


def test_heads_wrap_when_too_many_for_the_width() -> None:
    heads = np.stack([np.eye(8)] * 12)
    view = grid([(layer, bare(heads)) for layer in range(2)], large=True)
    text = printed(view, width=40, colour="truecolor")
    bands = [re.findall(r"H\d+", line) for line in text.splitlines() if "H" in line]
    assert bands == [[f"H{head}" for head in range(start, start + 4)] for start in (0, 4, 8)]


@pytest.mark.parametrize("count", [2, 3, 5, 7, 9, 11, 13])
def test_pipe_thumbnail_rows_have_equal_heights(count: int) -> None:
    values = np.tril(np.ones((1, count, count)))
    view = grid([(0, bare(values, values[0] > 0))])
    shown = [line for line in printed(view, width=80).splitlines() if "█" in line and "%" not in line]
    lines = Counter(line.count("█") for line in shown)
    assert len(lines) == count
    assert len(set(lines.values())) == 1


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (grid([(layer, bare(np.eye(4)[None])) for layer in (0, 2)]), "no attention of this kind in L1"),
        (heatmap(random_head(200)), "pooled to fit"),
        (grid([(0, bare(np.full((1, 90, 91), 1 / 90)))]), "shown as"),
        (distance_table(144), "each cell is the mean over 2 × 2 heads"),
        (heatmap(random_head(3, 60)), "columns: 0 word 1 words 2 wordss"),
    ],
    ids=["hole", "head", "grid", "distances", "columns"],
)
def test_missing_layers_pooling_and_hidden_labels_are_noted(view, told) -> None:
    assert told in " ".join(without_codes(printed(view, colour="truecolor")).split())


@pytest.mark.parametrize("count", [3, 12, 30])
def test_pipe_legend_explains_blank_hidden_and_dotted_masked_cells(count: int) -> None:
    values = np.tril(np.full((count, count), 0.3))
    values[:, 0] = 0.6
    view = heatmap(bare(values, values > 0), min_weight=0.5)
    text = printed(view, width=120)
    lines = text.splitlines()[::-1]  # the header, which may look like a row, comes last
    rows = [next(line for line in lines if line.split()[:2] == [f"{i}"] * 2) for i in range(count)]
    assert [row.count("·") for row in rows] == [*range(count - 1, -1, -1)]
    assert set(rows[-1].replace(f"{count - 1}", "")) == set(" ▓60" if count < 30 else " ▓")
    assert "· masked; hidden below 0.5: blank" in " ".join(text.split())


def test_token_text_is_literal() -> None:
    field = weights(np.eye(3), tokens("[red]x[/red]", ":smile:", "[CLS]"), tokens("a", "b", "c"))
    text = printed(heatmap(field), colour="truecolor")
    assert all(label in text for label in ("[red]x[/red] 0", ":smile: 1", "[CLS] 2"))
    out = printed(aligned(("\x1b[31m", "[bold]x[/]"), ("a", "a")), width=80)
    assert ("\x1b" in out, "[bold]x[/]" in out) == (False, True)
    assert "[bold]" in printed(pair(label="[bold]"), width=80)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=8), min_size=2, max_size=6))
def test_tokens_cannot_send_control_codes_or_shift_columns(texts: list[str]) -> None:
    axis = tokens(*texts)
    view = heatmap(weights(np.eye(len(axis)), axis, axis), title=texts[0])
    text = printed(view)
    assert not [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert len({next(i for i, p in enumerate(line) if p[0]) for line in coloured(view)[: len(axis)]}) == 1


@pytest.mark.parametrize("label", ["猫", "مرحبا", "שלום", "👩\u200d🚀", "e\u0301tude", "กำ", "🇩🇪"])
def test_labels_of_any_script_keep_columns_aligned(label: str) -> None:
    axis = tokens("plain", label, "x")
    lines = coloured(heatmap(weights(np.eye(3), axis, axis)))[:3]
    assert len({(len(line), next(i for i, p in enumerate(line) if p[0])) for line in lines}) == 1


def test_token_lists_have_bars_exact_to_an_eighth_column() -> None:
    field = weights(np.array([[0.75, 0.25], [1, 0]]), tokens("cat", "sat"), tokens("cat", "sat"))
    text = printed(token_view(field, query=0, key=0))
    rows = [re.findall(r"(\w+ \d)  (\d\.\d\d)", part) for part in text.split("is attended to by")]
    assert rows == [[("cat 0", "0.75"), ("sat 1", "0.25")], [("sat 1", "1.00"), ("cat 0", "0.75")]]
    assert "full bar: 1 attention weight" in text
    field = bare(np.array([[0.5, 0.25, 0.125, 0.125]]))
    text = printed(token_view(field, query=0, key=None), width=200)
    bars = [re.sub(r"[^▏▎▍▌▋▊▉█]", "", line) for line in text.splitlines() if "0." in line and "█" in line]
    assert [len(bar) for bar in bars] == [48, 24, 12, 12]


def test_terminal_head_map_shows_every_value() -> None:
    text = printed(head_map({0: [0.25, 0.5], 3: [float("nan"), 1.0]}, "confidence"))
    assert re.search(r"L0\s+0\.25\s+0\.50", text)
    assert re.search(r"L3\s+·\s+1\.00?", text)


def test_suggested_commands_are_whole_or_share_a_prefix() -> None:
    start = "attnscope show " + "x" * 60
    ranking = Ranking(tuple(HeadRank(f"L0H{head}", "why", f"{start} --head L0H{head}") for head in range(3)))
    text = printed(ranking, width=60)
    assert text.count(start) == 1
    assert "      … --head L0H2\n" in text
    assert printed(ranking, width=160).count(start) == 3


def test_ascii_console_gets_ascii_in_the_same_columns() -> None:
    axis = tokens("猫", "naïve", "x")
    view = heatmap(weights(np.eye(3), axis, axis, np.tril(np.ones((3, 3), bool))))
    written = io.TextIOWrapper(io.BytesIO(), "ascii", newline="")
    Console(file=written, width=60).print(PrintedView(view), crop=False)
    written.flush()
    text = written.buffer.getvalue().decode("ascii")
    rows = [line for line in text.splitlines() if "#100" in line]
    assert [row.index("#") for row in rows] == [8, 13, 18]
    assert rows[0].startswith("   ?? 0 #100")


def test_distance_table_colours_show_nearness():
    view = distance_table(24, [range(10), range(10, 24)])
    seen, expected = pixels(view), expected_colours(view.nearness())
    first, label = seen.index(coloured(view)[0]), len("L0H0 ") + 1
    for row, column in np.ndindex(24, 24):
        line = seen[first + row + (row >= 10)]  # a line of air between the groups
        assert line[label + 2 * column + (column >= 10)] == (tuple(expected[row, column]),) * 2


def test_large_distance_table_uses_half_blocks():
    view = distance_table(72)
    seen, expected = coloured(view), expected_colours(view.nearness())
    label = max(map(len, view.rows)) + 1
    for line, column in np.ndindex(36, 72):
        halves = tuple(map(tuple, expected[2 * line : 2 * line + 2, column]))
        assert seen[line][label + column] == halves
    small = view.fit(5, 5)  # the mean of several heads
    assert small.values[1, 4] == pytest.approx(view.values[15:30, 60:].mean())


def test_table_without_groups_names_columns_and_ends():
    names = [f"L{layer}" for layer in range(32)]
    view = distance_map(np.random.default_rng(0).random((32, 32)), names, names, low=0.1)
    out = without_codes(printed(view, width=80, colour="truecolor")).splitlines()
    header = next(line for line in out if line.split()[:1] == ["L0"])
    assert [header.index(f"L{layer} ") for layer in (0, 2, 30 - 2)] == [4, 8, 60]
    assert [line.split()[0] for line in out if line.startswith("L")] == names
    assert any(" apart " in line and "0.1 alike" in line for line in out)


@pytest.mark.parametrize("count", [6, 24, 32, 72])
def test_table_lines_start_with_first_head_and_small_tables_have_numbers(count):
    view = distance_table(count, [range(count // 2), range(count // 2, count)])
    out = without_codes(printed(view, width=80, colour="truecolor"))
    assert (f"{view.values[0, 1]:.2f}" in out, "numbers mark" in out) == (count == 6, count > 6)
    half = count // 2  # an empty row stands before the second group
    two_a_line = (*view.rows[:half:2], view.rows[half], *view.rows[half + 1 :: 2])
    assert re.findall(r"^L\d+H\d+", out, re.MULTILINE) == list(view.rows if count <= 32 else two_a_line)


def test_matched_head_table_shows_only_what_fits():
    apart = np.arange(40 * 60).reshape(40, 60) / 2400
    names = [[f"L{layer}H{head}" for head in range(count)] for layer, count in enumerate(apart.shape)]
    out = printed(distance_map(apart, *names, matched=True), width=80)
    assert "the first 12 of 40 rows and 60 columns" in out
    assert "L1H11" in out
    assert "mean over" not in out


def test_head_pair_is_side_by_side_if_it_fits():
    assert re.search("^L0H1 .*L2H3", "\n".join(printed(pair(), width=160).splitlines()[2:]), re.MULTILINE)
    narrow = printed(pair(), width=80).splitlines()
    titles = ["L0H1", "L2H3", "L0H1 − L2H3"]
    assert [line for line in narrow if line in titles] == titles
    assert any(re.fullmatch(r" *cat 2  0\.51  cat 0 0\.95 +it 8 0\.11", line) for line in narrow)


def test_differences_of_two_texts_are_marked():
    out = printed(aligned(("the", "the"), ("cat", "dog"), (None, "old"), ("sat", None), (".", ".")), width=80)
    assert out.splitlines()[2:5] == ["the cat     sat .", "the dog old     .", "    ~~~ +   −"]


@pytest.mark.parametrize(
    ("low", "ends"),
    [
        ("0", "75%  of 1.94"),
        ("1.92", "75%  of 1.92 to 1.94"),
        ("-1.92", "75%  of -1.92 to 1.94"),
        ("≤-1.94", "75%  of ±1.94"),
        ("-largest", "75%  of ±1.94"),
    ],
)
def test_shades_name_both_ends_of_a_scale_that_does_not_begin_at_zero(low, ends):
    surface = Surface(100, False)
    (line,) = surface.colour_bar(low, "1.94", surface.palette(signed=False), "entropy")
    assert ends in "".join(segment.text for segment in line)
