"""Floats in JSON and CSV have at most nine significant digits, as many as float32."""

import csv
import re
import shlex

import numpy as np
import pytest

from attnscope.axes import Place, Weights
from attnscope.storage.arrays import read_weights, save_weights
from tests.cli.test_schema import ASKED, WORDS

TEXT = "The cat sat on the mat."
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?|-?\d+e[-+]\d+")


def digits(number: str) -> int:
    return len(re.sub(r"e.*|[-.]", "", number).strip("0"))


@pytest.mark.sweep
@pytest.mark.parametrize("asked", [f"{one} {of.split('|')[-1]}" for one, of in ASKED.items()])
def test_json_floats_have_at_most_nine_digits(run, place, monkeypatch, asked):
    monkeypatch.chdir(place)
    out = run(*(WORDS.get(word, word) for word in shlex.split(asked)), "--json").out
    floats = re.findall(r"[\[ ](-?\d+\.\d[-\d.e]*)(?=[,\]}])", out)
    assert not [each for each in floats if digits(each) > 9]
    if asked.startswith("stats"):
        assert max(map(digits, floats)) == 9


def test_csv_and_file_floats_have_at_most_nine_digits(run, tmp_path):
    for words in (["stats", TEXT], ["find", "sat -> cat", TEXT], ["ablate", TEXT], ["compare", TEXT]):
        cells = [cell for row in csv.reader(run(*words, "--csv").out.splitlines()) for cell in row]
        floats = [cell for cell in cells if NUMBER.fullmatch(cell)]
        assert max(map(digits, floats)) in range(6, 10), words
    for suffix in ("csv", "json"):
        run("stats", TEXT, "--pooled", tmp_path / f"pooled.{suffix}")
        run("flow", TEXT, "-o", tmp_path / f"flow.{suffix}")
        for name in ("pooled", "flow"):
            floats = NUMBER.findall((tmp_path / f"{name}.{suffix}").read_text())
            assert max(map(digits, floats)) in range(7, 10), name


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_json_weights_are_exact_in_float32(tmp_path, kind):
    values = np.random.default_rng(0).dirichlet(np.ones(40), (3, 40)).astype(kind)
    values[0, 0, 0] = np.float32(1.7e-9)  # none of them is rounded to 0
    places = tuple(Place(str(at), at, at + 1) for at in range(40))
    weights = Weights(values, np.ones((1, 40, 40), bool), places, places)
    save_weights({"encoder": [(0, weights)]}, tmp_path / "maps.json")
    ((_, read),) = read_weights(tmp_path / "maps.json").kinds["encoder"]
    assert max(map(digits, NUMBER.findall((tmp_path / "maps.json").read_text()))) == 9
    if kind == np.float32:
        np.testing.assert_array_equal(read.values.astype(kind), values)
    else:
        np.testing.assert_allclose(read.values, values, rtol=5e-9)  # half of the ninth digit
