"""The README's picture, drawn anew: ``python -m tests.tools.pictures``."""

from pathlib import Path

from attnscope.cli.deliver import save_pictures
from attnscope.cli.options import PrintedOptions
from attnscope.models import load
from attnscope.questions.overview import of_overview, overview
from attnscope.questions.selection import Selection

TEXT = "The cat sat on the mat because it was tired."
PICTURES = Path(__file__).parents[2] / ".pictures"


def main() -> None:
    """Draw every head of the bundled encoder on the README's sentence."""
    model = load("own")
    save_pictures(
        of_overview(overview(model, model.prepare(TEXT), Selection()), None),
        PICTURES / "overview.png",
        PrintedOptions(),
    )


if __name__ == "__main__":
    main()
