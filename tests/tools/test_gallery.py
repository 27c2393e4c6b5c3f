"""The gallery can be made, and is as large as one person looks at."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebook import induction
from tests.render.page.browser import CHROMIUM
from tests.tools.gallery import PAGES_OF, draw, plates

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_plate_can_be_made_and_one_is_drawn(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(induction, "STEPS", 2)
    made = list(plates(tmp_path))
    names = [plate.name for plate in made]
    assert len(set(names)) == len(names)
    pictures = sum(len(plate.terminals) + len(plate.inches) for plate in made)
    photographs = sum(map(len, PAGES_OF.values()))
    assert 60 <= pictures + photographs <= 80
    folder = tmp_path / "gallery"
    folder.mkdir()
    draw(folder, next(plate for plate in made if plate.name == "token"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "token-160-true.ansi",
        "token-160-true.svg",
        "token-3.3in.png",
    ]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_pages_are_photographed_by_a_process_that_drew_a_picture(tmp_path: Path) -> None:
    script = """if True:
        import sys
        from pathlib import Path
        from matplotlib.figure import Figure
        from tests.render.page.browser import browser
        figure = Figure()
        figure.text(0, 0, "a letter")
        figure.savefig(sys.argv[1] + "/picture.png")
        with browser(Path(sys.argv[1])) as shown:
            shown.photograph(Path(sys.argv[1]) / "page.png")
    """
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, cwd=ROOT)
    assert (tmp_path / "page.png").stat().st_size > 100
