"""The lowest versions that pyproject.toml allows, as pip's constraints: ``python -m tests.tools.lowest``.

torch stays at the README's release without ``--torch``: registries serve its old ones with all of CUDA,
which takes gigabytes.
"""

import re
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
BOUND = re.compile(r'"([\w.-]+)(?:\[\w+\])?>=([\w.]+)"')


def lowest(torch: bool) -> dict[str, str]:
    """Each requirement of the package and its extras, but for what builds it, and its version.

    What an extra asks for in a later version than the package is left at the package's.
    """
    found = dict(reversed(BOUND.findall(PROJECT.read_text("utf-8").partition("[project]")[2])))
    (release,) = set(re.findall(r"torch==([\d.]+)", (PROJECT.parent / "README.md").read_text("utf-8")))
    return found if torch else found | {"torch": release}


if __name__ == "__main__":
    for name, each in lowest("--torch" in sys.argv).items():
        print(f"{name}=={each}")
