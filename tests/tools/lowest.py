"""The lowest versions that pyproject.toml allows, as pip's constraints: ``python -m tests.tools.lowest``."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
BOUND = re.compile(r'"([\w.-]+)(?:\[\w+\])?>=([\w.]+)"')


def lowest() -> list[str]:
    """A line ``name==version`` for each requirement of the package and its extras, but for what builds it."""
    text = PROJECT.read_text("utf-8").partition("[project]")[2]
    return [f"{name}=={version}" for name, version in BOUND.findall(text)]


if __name__ == "__main__":
    print("\n".join(lowest()))
