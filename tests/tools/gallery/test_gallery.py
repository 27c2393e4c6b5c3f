"""The gallery can be made, and is as large as one person looks at."""

from pathlib import Path

import pytest

from tests.tools.gallery.__main__ import PAGES_OF, draw
from tests.tools.gallery.plates import plates


@pytest.mark.slow
def test_every_plate_can_be_made_and_one_is_drawn(tmp_path: Path) -> None:
    made = list(plates(tmp_path))
    names = [plate.name for plate in made]
    assert len(set(names)) == len(names)
    pictures = sum(len(plate.terminals) + len(plate.inches) for plate in made)
    photographs = sum(map(len, PAGES_OF.values()))
    assert 60 <= pictures + photographs <= 75
    folder = tmp_path / "gallery"
    folder.mkdir()
    draw(folder, next(plate for plate in made if plate.name == "token"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "token-160-true.ansi",
        "token-160-true.svg",
        "token-3.3in.png",
    ]
