"""The rooms of the package and the direction of the arrows between them."""

import ast
from pathlib import Path

import pytest

import attnscope

PACKAGE = Path(attnscope.__file__).parent
FLOORS = [
    {"errors", "registry", "memory"},
    {"attention"},
    {"measures", "divergence", "capture"},
    {"network", "models", "views"},
    {"render", "look"},
    {"browser"},
    {"cli", "__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
BANNED = {"measures": {"transformers"}, "views": {"rich", "matplotlib"}}
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path):
    """Every absolute module name that a file imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_upwards_only(path):
    room = room_of(path)
    for name in imports(path):
        parts = name.split(".")
        assert parts[0] not in BANNED.get(room, ()), f"{path} imports {name}"
        if parts[0] == "attnscope" and parts[1] in FLOOR:
            assert FLOOR[parts[1]] <= FLOOR[room], f"{path} imports {name}, which stands on a higher floor"


def test_every_file_stands_in_a_room_and_none_is_named_utils():
    assert SOURCES
    for path in SOURCES:
        assert room_of(path) in FLOOR, path
        assert "utils" not in path.stem
