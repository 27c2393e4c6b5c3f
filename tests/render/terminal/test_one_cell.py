"""One cell a head: which letters and colours reach the terminal, and that they fit a screen."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from attnscope.measures.roles import ROLES
from attnscope.render.colour import ROLE_COLOURS, role_colour, table
from attnscope.render.terminal import print_views
from attnscope.views import ROLE_LETTERS, HeadRank, Ranking, RoleMap, grid, head_map, letter_of
from tests.questions.roles import LETTERS, plant_roles
from tests.render.screen import bare, printed, random_head, widths

BY_LETTER = {letter_of(role): role for pattern in ROLE_LETTERS for role in (f"weak {pattern}", pattern)}


def roles_of(letters: list[str]) -> RoleMap:
    rows = tuple(tuple(BY_LETTER[letter] for letter in row) for row in letters)
    return RoleMap(tuple(range(len(rows))), rows, title="a model")


def on_a_screen(views, width: int, height: int, colour: str = "truecolor") -> str:
    look = {"force_terminal": True, "color_system": colour, "legacy_windows": False, "highlight": False}
    console = Console(file=io.StringIO(), width=width, height=height, **look)
    print_views(views, console)
    return console.file.getvalue()


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()


def read_blocks(lines: list[str], layers: int) -> list[str]:
    """The letters of each layer, from blocks of layers side by side."""
    found = {}
    for line in lines:
        for layer, letters in re.findall(r"L(\d+) +((?:[A-Za-z·]{1,3} {0,2})+?)(?=  L\d|$)", line):
            found[int(layer)] = letters.replace(" ", "")
    return [found[layer] for layer in range(layers)]


SHOW = "attnscope show x --head "
NAMES = [f"L{number}H{number}" for number in range(10)]
WORTH = Ranking(tuple(HeadRank(name, "attends back", SHOW + name) for name in NAMES), title="Worth a look")


@pytest.mark.parametrize(
    ("layers", "heads", "width", "height"),
    [(32, 32, 80, 24), (12, 12, 80, 24), (24, 16, 80, 24), (32, 32, 160, 48), (80, 64, 160, 48)],
)
def test_every_letter_ten_heads_and_a_command_fit_one_screen(layers, heads, width, height) -> None:
    _, letters = plant_roles(layers, heads)
    lines = plain(on_a_screen([roles_of(letters), WORTH], width, height))
    assert len(lines) < height
    assert max(widths("\n".join(lines))) <= width
    assert read_blocks(lines, layers) == letters
    text = " ".join(lines)
    for name in LETTERS.values():
        assert re.search(rf"(?<!\S){name} [\w ()]+ {sum(row.count(name) for row in letters):,}(?!\S)", text)
    assert all(re.search(rf"\b{each.head}\b", text) for each in WORTH.heads)
    assert "attnscope show x --head L0H0" in text


@pytest.mark.parametrize("kinds", ["PpSsFfOoHB·", "PpNnSsOoFfXxHB·", "PpNnSsOoIiDdFfXxUuHB·"])
def test_a_full_command_fits_one_screen_below_many_roles(kinds) -> None:
    rows = ["".join(row) for row in np.random.default_rng(0).choice([*kinds], (32, 32))]
    view = grid(
        [(layer, bare(np.stack([random_head(60).values] * 32))) for layer in range(32)], roles=roles_of(rows)
    )
    noted = replace(WORTH, notes=("cut: the first 60 of 22,884 tokens are shown",))
    lines = plain(on_a_screen([view, noted], 80, 24))
    assert len(lines) < 24
    assert max(widths("\n".join(lines))) <= 80
    assert read_blocks(lines, 32) == rows
    text = " ".join(lines)
    assert "Next: attnscope show x --head L0H0" in text
    assert "maps: --" in text
    for role, words in roles_of(rows).legend.items():
        assert f"{letter_of(role)} {words}" in text


def test_thumbnails_give_way_to_letters_below_six_cells() -> None:
    """In colour a line has two rows; a text of three tokens has but three cells."""
    for count, layers, clear in ((13, 4, True), (13, 12, False), (3, 8, True), (60, 3, True), (60, 8, False)):
        stack = bare(np.stack([random_head(count).values] * 8))
        letters = ["P" * 8] * layers
        view = grid([(layer, stack) for layer in range(layers)], title="a model", roles=roles_of(letters))
        lines = plain(on_a_screen([view, WORTH], 80, 24))
        assert ("P previous" not in " ".join(lines)) == clear, (count, layers)
        assert len(lines) < 24


def test_thumbnails_without_colour_are_clear_or_letters() -> None:
    """A pipe has a line for each of seven rows; a screen has four, which are no picture."""
    stack = bare(np.stack([random_head(13).values] * 8))
    view = grid([(layer, stack) for layer in range(4)], title="a model", roles=roles_of(["P" * 8] * 4))
    assert "13 × 13 tokens shown as 7 × 7" in " ".join(printed(view).split())
    assert "P previous" in " ".join(printed(view, height=24).split())


def test_picture_has_six_rows_and_columns_or_those_of_its_text() -> None:
    long, short = (grid([(0, bare(np.eye(count)[None]))], roles=roles_of(["p"])) for count in (13, 3))
    assert [long.is_clear(*size) for size in ((6, 6), (5, 9), (9, 5))] == [True, False, False]
    assert [short.is_clear(*size) for size in ((3, 3), (2, 3))] == [True, False]
    assert replace(long, large=True).is_clear(1, 17)


def test_legend_names_layers_that_have_room_for_maps() -> None:
    stack = bare(np.stack([random_head(13).values] * 32))
    view = grid([(layer, stack) for layer in range(32)], title="a model", roles=roles_of(["P" * 32] * 32))
    text = " ".join(plain(on_a_screen([view, WORTH], 160, 48)))
    named = re.search(r"maps: --head NAME, --layer 0-(\d+), or --large", text)
    assert named is not None
    part = grid([(layer, stack) for layer in range(int(named[1]) + 1)], roles=roles_of(["P" * 32] * 32))
    lines = plain(on_a_screen([part, WORTH], 160, 48))
    assert "one map per head" in " ".join(lines)
    assert len(lines) < 48


def test_letters_stand_on_the_colours_of_their_roles() -> None:
    letters = ["PNSOIDFXUHB"]
    text = on_a_screen([roles_of(letters)], 80, 24)
    for letter in letters[0]:
        ground = ";".join(map(str, role_colour(BY_LETTER[letter])))
        assert re.search(rf"\x1b\[[\d;]*48;2;{ground}m *{letter}", text), letter


def test_every_role_has_its_letter_and_a_colour_of_256() -> None:
    patterns = {role.removeprefix("weak ") for role in ROLES}
    assert patterns <= {*ROLE_LETTERS}
    assert len({*ROLE_LETTERS.values()}) == len(ROLE_LETTERS)
    assert {*ROLE_COLOURS} == patterns - {"none"}
    text = on_a_screen([roles_of(["PNSOIDFXUHB"])], 80, 24, "256")
    grounds = re.findall(r"48;5;(\d+)m *([A-Z])", text)
    assert len({ground for ground, _ in grounds}) == len(ROLE_COLOURS)


def test_weak_heads_count_with_their_pattern_and_missing_heads_are_blank() -> None:
    rows = (("previous", "weak previous", "none"), ("", "weak self"))
    view = RoleMap((2, 5), rows, title="a model")
    assert view.legend == {
        "previous": "previous 1, p weak 1",
        "weak self": "weak self 1",
        "none": "none 1",
        "": "no scores 1",
    }
    assert [line.split() for line in printed(view).splitlines()[3:5]] == [
        ["L2", "P", "p", "·"],
        ["L5", "?", "s"],
    ]


@pytest.mark.parametrize("numbered", [True, False])
def test_compact_map_has_every_color_and_numbers_that_fit(numbered: bool) -> None:
    values = np.random.default_rng(1).random((4, 8 if numbered else 32))
    view = head_map(dict(enumerate(values.tolist())), "self", limits=(0.0, 1.0), compact=True)
    text = on_a_screen([view], 80, 24)
    tones = table("ember")[np.round(np.round(values * 63) * 255 / 63).astype(int)]
    for row, line in enumerate(text.splitlines()[2:6]):
        shown = re.findall(r"48;2;(\d+);(\d+);(\d+)m([^\x1b]*)", line)
        cells = [(tuple(map(int, each[:3]))) for each in shown]
        for colour in map(tuple, tones[row].tolist()):
            assert colour in cells
        numbers = [each[3].strip() for each in shown if each[3].strip().startswith("0.")]
        assert numbers == ([f"{value:.2f}" for value in values[row]] if numbered else [])
