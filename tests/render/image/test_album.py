"""Many heads in one go: the same files as one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnscope.axes import weights
from attnscope.errors import OutputError
from attnscope.render.image import Album, draw, save_image
from attnscope.views import Measured, grid, heatmap
from tests.render.screen import random_head


@pytest.fixture
def drawn(monkeypatch) -> list[str]:
    """The titles of the heads that were drawn in full."""
    titles: list[str] = []

    class Counted(draw.SharedSheet):
        def __init__(self, view, *given) -> None:
            titles.append(view.title)
            super().__init__(view, *given)

    monkeypatch.setattr(draw, "SharedSheet", Counted)
    return titles


def picture(head: int, count: int = 5, causal: bool = True, **changes):
    field = random_head(count, seed=head, causal=causal)
    reading = Measured("entropy", 0.1 * head, 1.5, "nats")
    view = heatmap(
        field, title=f"L0H{head}", subtitle="x" * (head + 1), readings=(reading,), notes=(f"note {head}",)
    )
    return replace(view, **changes)


def test_files_are_the_same_as_from_save_and_one_head_is_drawn(tmp_path, drawn) -> None:
    album = Album(dpi=60)
    for head in range(6):
        scaled = {"scale": "head", "limits": (0.0, 0.1 * head)} if head % 2 else {}
        view = picture(head, **scaled)
        assert album.save(view, tmp_path / f"{head}.png") == []
        save_image(view, tmp_path / "alone.png", dpi=60)
        assert (tmp_path / f"{head}.png").read_bytes() == (tmp_path / "alone.png").read_bytes(), head
    assert drawn == ["L0H0"]


@pytest.mark.parametrize(
    "other",
    [
        picture(1, count=6),
        picture(1, causal=False),
        picture(1, title=""),
        picture(1, notes=("a note", "another")),
        picture(1, scale="row"),
        picture(1, signed=True),
    ],
    ids=["labels", "mask", "no title", "a note", "scale", "signed"],
)
def test_what_differs_in_more_than_its_cells_is_drawn_anew(other, tmp_path, drawn) -> None:
    album = Album(dpi=60)
    album.save(picture(0), tmp_path / "first.png")
    album.save(other, tmp_path / "second.png")
    save_image(other, tmp_path / "alone.png", dpi=60)
    assert (tmp_path / "second.png").read_bytes() == (tmp_path / "alone.png").read_bytes()
    assert len(drawn) == 2


def test_other_views_and_formats_are_saved_too(tmp_path) -> None:
    album = Album()
    album.save(grid([(0, weights(np.eye(4)[None], range(4), range(4)))]), tmp_path / "grid.png")
    album.save(picture(0), tmp_path / "head.svg")
    assert {path.name for path in tmp_path.iterdir()} == {"grid.png", "head.svg"}
    with pytest.raises(OutputError, match="not an image format"):
        album.save(picture(0), tmp_path / "head.gif")
