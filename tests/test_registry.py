"""A registry suggests the nearest name."""

import pytest

from attnscope.errors import SelectionError
from attnscope.registry import Registry


@pytest.fixture
def shapes():
    registry = Registry("shape")
    registry.register("square")(4)
    registry.register("triangle")(3)
    return registry


def test_registry_keeps_order_and_rejects_duplicates_and_unknowns(shapes):
    assert shapes["triangle"] == 3
    assert list(shapes) == ["square", "triangle"]
    assert (len(shapes), "square" in shapes) == (2, True)
    with pytest.raises(ValueError, match="shape 'square' is registered already"):
        shapes.register("square")(5)
    with pytest.raises(SelectionError, match=r"no shape 'squar': did you mean 'square'\?"):
        shapes["squar"]


def test_registry_family_matches_names_and_lists_once(shapes):
    shapes.register_family("polygon=N", r"polygon=(\d+)")(lambda name, corners: int(corners))
    assert shapes["polygon=12"] == 12
    assert ("polygon=7" in shapes, "polygon=x" in shapes) == (True, False)
    assert list(shapes) == ["square", "triangle"]
    with pytest.raises(
        SelectionError, match=r"^no shape 'polygon=x': there are square, triangle, polygon=N$"
    ):
        shapes["polygon=x"]


def test_registry_loads_more_entries_for_unknown_name():
    larger = Registry("shape", more=lambda: larger._entries.setdefault("circle", 0.5))
    larger.register("square")(4)
    assert (larger["square"], list(larger)) == (4, ["square"])
    assert "circle" in larger
    with pytest.raises(SelectionError, match=r"there are square, circle$"):
        larger["xyzzy"]
