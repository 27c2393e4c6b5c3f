from __future__ import annotations

from dataclasses import asdict

import pytest

from attnscope.errors import ModelError
from attnscope.network.encoder import EncoderConfig

SIZES = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "hidden": 32}


def test_a_config_survives_its_own_dictionary() -> None:
    config = EncoderConfig(**SIZES, causal=True, trained=True, positions="none", rotary_base=50.0)
    assert EncoderConfig.from_dict(asdict(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "3 heads do not divide a width of 16"),
        ({"heads": 16}, "an even width a head, not 1"),
        ({"width": 0}, "width is a whole number from 1 to 65536, not 0"),
        ({"layers": 2.0}, "layers is a whole number .* not 2.0"),
        ({"layers": True}, "layers is a whole number .* not True"),
        ({"segments": 3}, "segments is a whole number from 0 to 2, not 3"),
        ({"causal": 1}, "causal is true or false, not 1"),
        ({"positions": "learned"}, "positions is one of rotary, sinusoidal, none, not 'learned'"),
        ({"positions": ["rotary"]}, "positions is one of"),
        ({"activation": "swish"}, "activation is one of gelu, relu, not 'swish'"),
        ({"dropout": 1.0}, "dropout is a number from 0.0 to 0.9, not 1.0"),
        ({"dropout": float("nan")}, "dropout is a number"),
        ({"rotary_base": "10000"}, "rotary_base is a number .* not '10000'"),
        ({"depth": 4}, "unknown field 'depth': there are activation, causal, "),
    ],
)
def test_a_value_that_makes_no_sense_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        EncoderConfig.from_dict({**SIZES, **changes})


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ModelError, match="the field 'layers' is missing"):
        EncoderConfig.from_dict({name: value for name, value in SIZES.items() if name != "layers"})
