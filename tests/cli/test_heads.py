"""Every spelling of a head that people use."""

import click
import pytest

from attnscope.attention import Head
from attnscope.cli.options import LayerOptions, parse_head


@pytest.mark.parametrize("spelling", ["L5H3", "l5h3", "5.3", "5-3", " L5H3 ", "L05H03"])
def test_a_head_is_spelled_in_many_ways(spelling):
    assert parse_head(spelling) == Head("L5H3")


def test_layer_and_head_may_come_apart():
    assert parse_head("3", LayerOptions(layers="5")) == Head("L5H3")
    assert parse_head("L5H3", LayerOptions(layers="5")) == Head("L5H3")


def test_a_kind_stands_before_a_head_or_in_its_own_option():
    assert parse_head("cross L5H3") == Head("cross L5H3")
    assert parse_head("cross L5H3", LayerOptions(kind="cross")) == Head("cross L5H3")
    with pytest.raises(click.BadParameter, match="--kind encoder and --head cross L5H3 name two kinds"):
        parse_head("cross L5H3", LayerOptions(kind="encoder"))


@pytest.mark.parametrize(
    ("head", "layer", "sentence"),
    [
        ("3", None, "which layer"),
        ("L5", None, "'L5' is not a head: write L5H3, 5.3 or 5-3"),
        ("5.3.1", None, "is not a head"),
        ("-1", None, "is not a head"),
        ("٣", "1", "is not a head"),
        ("", None, "is not a head"),
        ("3", "0-3", "which layer"),
        ("L5H3", "4", "--layer 4 and --head L5H3 name two layers"),
    ],
)
def test_a_wrong_spelling_says_what_to_write(head, layer, sentence):
    with pytest.raises(click.BadParameter, match=sentence):
        parse_head(head, LayerOptions(layers=layer))
