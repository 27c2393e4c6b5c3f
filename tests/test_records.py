"""Records against JSON Schema's own validator, and against foreign JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest

from attnscope.attention import Head
from attnscope.records import NUMBER_SHAPE, Meaning, Parts, derived, plain, read, record, schema


@record("a score")
class Score:
    value: Annotated[float, Meaning("the score")]
    error: Annotated[float | None, Meaning("its error", optional=True)] = None


@dataclass(frozen=True)
class Place:
    layer: int
    kind: Literal["encoder", "decoder"]


MATRIX = {"type": "array", "items": {"type": "array", "items": NUMBER_SHAPE}}


@record("a head")
class Measured:
    head: Annotated[Head, Meaning("its address")]
    place: Annotated[Place, Parts(layer="its layer", kind="its kind")]
    scores: Annotated[Mapping[str, Score], Meaning("by measure")]
    pair: Annotated[tuple[float, float], Meaning("two numbers")]
    weights: Annotated[object, Meaning("[query, key]", shape=MATRIX)]
    note: Annotated[str | None, Meaning("a note")] = None
    secret: int = 0

    @derived("twice its layer", name="double")
    def twice(self) -> int:
        return 2 * self.place.layer


PLACED = Head("L1H2"), Place(1, "encoder")
ONE = Measured(*PLACED, {"entropy": Score(0.5)}, (1.0, 2.0), np.zeros((2, 2)), secret=7)


def test_plain_data_hold_only_described_fields():
    assert plain(ONE) == {
        "head": "L1H2",
        "layer": 1,
        "kind": "encoder",
        "scores": {"entropy": {"value": 0.5}},
        "pair": [1.0, 2.0],
        "weights": [[0, 0], [0, 0]],
        "note": None,
        "double": 2,
    }


def test_schema_accepts_its_records_alone_and_describes_fields():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(plain(ONE), schema(Measured))
    without = {name: value for name, value in plain(ONE).items() if name != "double"}
    changes = {"layer": "one"}, {"kind": "cross"}, {"pair": [1.0]}, {"more": 1}, {"weights": [1]}
    for wrong in (without, *(plain(ONE) | change for change in changes)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema(Measured))
    described = schema(Measured)["properties"]
    assert described["double"]["description"] == "twice its layer"
    assert described["weights"]["description"] == "[query, key]"
    assert "error" not in schema(Score)["required"]


@pytest.mark.parametrize(
    "wrong",
    [{"layer": 1}, {"layer": 1, "kind": "cross"}, {"layer": True, "kind": "encoder"}, {"layer": 1 << 60}, []],
)
def test_reading_refuses_missing_extra_or_mistyped_fields(wrong):
    assert read(Place, {"layer": 3, "kind": "decoder"}) == Place(3, "decoder")
    with pytest.raises(ValueError, match=r"^it"):
        read(Place, wrong)
