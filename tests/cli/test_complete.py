"""What Tab offers in a shell."""

import click
import pytest

from attnscope.cli import commands, options
from attnscope.measures import MEASURES, ROLES
from attnscope.render.colour import choose_map


def test_every_measure_and_role_is_offered():
    assert set(options.measure_names()) == set(MEASURES)
    assert set(options.explained_names()) >= {*MEASURES, *ROLES}


@pytest.mark.parametrize(
    ("command", "option", "begun", "offered"),
    [
        ("stats", "--map", "ind", ["induction"]),
        ("show", "--cmap", "VI", ["viridis"]),
        ("show", "--kind", "", ["encoder", "decoder", "cross"]),
    ],
)
def test_what_begins_as_typed_is_offered(command, option, begun, offered):
    context = click.Context(commands)
    found = commands.get_command(context, command)
    (parameter,) = (each for each in found.params if option in each.opts)
    assert [each.value for each in parameter.shell_complete(context, begun)] == offered


def test_every_colour_map_that_is_offered_exists():
    for name in options.map_names():
        choose_map(name, signed=True)


def test_models_of_the_hub_that_are_here_are_offered(tmp_path, monkeypatch):
    (tmp_path / "models--someone--a-bert").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert list(options.model_names()) == ["own", "own-causal", "someone/a-bert"]
