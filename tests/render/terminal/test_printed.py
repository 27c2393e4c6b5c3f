"""What is printed in one piece looks as what is printed cell by cell."""

import io

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from attnscope.axes import weights
from attnscope.render.terminal import PrintedView, print_view
from attnscope.views import Grid, grid
from tests.render.screen import random_head, tokens


def console(system: str, **how) -> Console:
    return Console(
        file=io.StringIO(),
        width=90,
        force_terminal=True,
        color_system=system,
        highlight=False,
        legacy_windows=False,
        _environ={},
        **how,
    )


def cells(text: str) -> list[tuple[str, str, str | None]]:
    """Each character with its colours, as a terminal shows them; a blank has a ground alone."""
    read = Text.from_ansi(text)
    plain = Console(width=4000)
    found = []
    for number, character in enumerate(read.plain):
        style = read.get_style_at_offset(plain, number)
        front = "" if character == " " else str(style.color)
        ground = None if style.bgcolor is None or style.bgcolor.is_default else str(style.bgcolor)
        found.append((character, front, ground))
    return found


def views() -> dict[str, Grid]:
    causal = [
        np.stack([random_head(13, seed=4 * layer + head, causal=True).values for head in range(4)])
        for layer in range(3)
    ]
    axis = tokens(*(f"t{number}" for number in range(40)))
    long = np.random.default_rng(0).dirichlet(np.full(40, 0.1), (2, 5, 40))
    few = weights(causal[2][:2], axis[:13], axis[:13], np.tril(np.ones((13, 13), bool)))
    short = [
        (layer, weights(one, axis[:13], axis[:13], np.tril(np.ones((13, 13), bool))))
        for layer, one in enumerate(causal)
    ]
    return {
        "masked": grid(short, title="a model"),
        "layers with fewer heads, and none": grid([short[0], (3, few)], title="x"),
        "long": grid([(layer, weights(one, axis, axis)) for layer, one in enumerate(long)], title="x"),
    }


@pytest.mark.parametrize("system", ["truecolor", "256"])
@pytest.mark.parametrize("name", views())
def test_an_overview_is_the_same_in_one_piece_and_cell_by_cell(name, system):
    view = views()[name]
    direct, apart = console(system), console(system)
    print_view(view, direct)
    apart.print(PrintedView(view), crop=False)
    assert cells(direct.file.getvalue()) == cells(apart.file.getvalue())


def test_a_console_that_records_gets_every_cell():
    recording = console("truecolor", record=True)
    print_view(views()["masked"], recording)
    assert "▀" in recording.export_text()
