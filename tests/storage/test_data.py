"""Attention as data: written, read by other tools, read back, refused."""

from __future__ import annotations

import csv
import io
import json
import pickle
import weakref

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from attnscope.axes import weights
from attnscope.errors import InputError, OutputError
from attnscope.storage.arrays import FORMATS, read_weights, save_weights
from tests.render.screen import random_head, tokens

TEXT = tokens("the", "\n", "=1+1", 'a,"b"', "猫")
CAUSAL = np.tril(np.ones((5, 5), bool))


def kinds() -> dict:
    def heads(seed: int) -> np.ndarray:
        values = np.stack([random_head(5, seed=seed + head).values for head in range(2)])
        return values.astype(np.float32)

    return {
        "encoder": [(layer, weights(heads(layer), TEXT, TEXT)) for layer in (0, 3, 11)],
        "decoder": [(0, weights(heads(7) * CAUSAL, TEXT, TEXT, CAUSAL))],
    }


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_what_is_read_back_is_what_was_saved(suffix: str, tmp_path) -> None:
    path = tmp_path / f"maps.{suffix}"
    save_weights(kinds(), path, title="a model", notes=("untrained",))
    found = read_weights(path)
    assert (str(found.title), [str(note) for note in found.notes]) == ("a model", ["untrained"])
    assert list(found.kinds) == ["encoder", "decoder"]
    for kind, layers in kinds().items():
        assert [layer for layer, _ in found.kinds[kind]] == [layer for layer, _ in layers]
        for (_, before), (_, after) in zip(layers, found.kinds[kind], strict=True):
            np.testing.assert_array_equal(after.values, before.values)
            np.testing.assert_array_equal(
                np.broadcast_to(after.allowed, (2, 5, 5)), np.broadcast_to(before.allowed, (2, 5, 5))
            )
            assert (after.queries, after.keys) == (before.queries, before.keys)


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_attention_gives_the_same_bytes(form: str, tmp_path) -> None:
    first, second = tmp_path / f"a.{form}", tmp_path / f"b.{form}"
    save_weights(kinds(), first)
    save_weights(kinds(), second)
    assert first.read_bytes() == second.read_bytes()


def test_an_npz_serves_other_tools_as_it_is(tmp_path) -> None:
    """The lines of the documentation: what bertviz and CircuitsVis are given."""
    path = tmp_path / "maps.npz"
    save_weights(kinds(), path)
    maps = np.load(path)
    np.testing.assert_array_equal(maps["encoder.03"][1], kinds()["encoder"][1][1].values[1])
    attention = [maps[f"encoder.{layer:02}"][None] for layer in (0, 3, 11)]  # [1, head, query, key] each
    assert {layer.shape for layer in attention} == {(1, 2, 5, 5)}
    assert maps["tokens"].tolist() == [token.text for token in TEXT]
    np.testing.assert_array_equal(maps["decoder.00.allowed"], CAUSAL[None])
    assert "encoder.00.allowed" not in maps


def test_safetensors_load_elsewhere(tmp_path) -> None:
    path = tmp_path / "maps.safetensors"
    save_weights(kinds(), path)
    np.testing.assert_array_equal(load_file(path)["encoder.11"], kinds()["encoder"][2][1].values)


def test_json_holds_the_exact_weights_and_null_where_the_mask_closed(tmp_path) -> None:
    path = tmp_path / "maps.json"
    save_weights(kinds(), path, title="a model")
    found = json.loads(path.read_text("utf-8"))
    assert found["title"] == "a model"
    assert found["axes"][0]["keys"][3] == ['a,"b"', 3, 4, False, [0, 3], 3]
    np.testing.assert_array_equal(
        np.array(found["weights"]["encoder.03"], np.float32), kinds()["encoder"][1][1].values
    )
    decoder = np.array(found["weights"]["decoder.00"], object)
    np.testing.assert_array_equal(decoder == None, np.broadcast_to(~CAUSAL, (2, 5, 5)))  # noqa: E711


def test_csv_has_a_line_for_every_open_weight(tmp_path) -> None:
    path = tmp_path / "maps.csv"
    save_weights(kinds(), path)
    rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8"), newline="")))
    assert len(rows) == 3 * 2 * 25 + 2 * 15
    row = rows[25 + 7]
    assert [row[name] for name in ("kind", "layer", "head", "query", "query_token", "key", "key_token")] == [
        "encoder", "0", "1", "1", "\n", "2", "'=1+1",
    ]  # fmt: skip
    assert np.float32(row["weight"]) == kinds()["encoder"][0][1].values[1, 1, 2]


@pytest.mark.parametrize("form", ["npz", "json", "csv"])
def test_one_layer_is_held_at_a_time(form: str, tmp_path) -> None:
    held: list[weakref.ref] = []

    def layers():
        for layer in range(5):
            assert sum(one() is not None for one in held) <= 1  # the one that was just written
            values = np.eye(3, dtype=np.float32)[None] + 0
            held.append(weakref.ref(values))
            yield layer, weights(values, range(3), range(3))
            del values

    save_weights({"encoder": layers()}, tmp_path / f"maps.{form}")
    assert len(held) == 5


@pytest.mark.parametrize(
    ("arrays", "layers", "heads"),
    [
        ({"a": (4, 4)}, 1, 1),
        ({"a": (3, 4, 4)}, 1, 3),
        ({"a": (2, 3, 4, 4)}, 2, 3),
        ({"a": (2, 1, 3, 4, 4)}, 2, 3),
        ({"arr_0": (1, 3, 4, 4), "arr_1": (1, 3, 4, 4)}, 2, 3),
        ({"l0": (3, 4, 4), "l1": (3, 4, 4)}, 2, 3),
    ],
)
def test_other_tools_tensors_are_read(arrays: dict, layers: int, heads: int, tmp_path) -> None:
    drawn = {
        name: np.random.default_rng(0).random(shape).astype(np.float32) for name, shape in arrays.items()
    }
    np.savez(tmp_path / "theirs.npz", tokens=np.array(["a", "b", "c", "d"]), **drawn)
    found = read_weights(tmp_path / "theirs.npz")
    (kind,) = found.kinds.values()
    assert list(found.kinds) == ["encoder"]
    assert (len(kind), len(kind[0][1].values)) == (layers, heads)
    assert [place.text for place in kind[0][1].keys] == ["a", "b", "c", "d"]
    assert "not known" in str(found.notes[0])
    whole = np.stack([field.values for _, field in kind])
    np.testing.assert_array_equal(whole.ravel(), np.concatenate([drawn[name].ravel() for name in arrays]))


def test_layers_of_other_tools_are_ordered_as_people_do(tmp_path) -> None:
    save_file(
        {f"layer.{i}": np.full((1, 2, 2), i, np.float32) for i in range(12)}, tmp_path / "theirs.safetensors"
    )
    (layers,) = read_weights(tmp_path / "theirs.safetensors").kinds.values()
    assert [field.values[0, 0, 0] for _, field in layers] == list(range(12))


def test_an_npy_is_read(tmp_path) -> None:
    np.save(tmp_path / "one.npy", np.eye(3))
    (layers,) = read_weights(tmp_path / "one.npy").kinds.values()
    assert [place.label for place in layers[0][1].keys] == ["0", "1", "2"]


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a file ran code')",))


def test_a_file_never_runs_code(tmp_path) -> None:
    np.savez(tmp_path / "bomb.npz", a=np.array([Bomb()], object))
    (tmp_path / "bomb.npy").write_bytes(pickle.dumps(Bomb()))
    for name in ("bomb.npz", "bomb.npy"):
        with pytest.raises(InputError, match="could run code"):
            read_weights(tmp_path / name)


def test_what_cannot_be_read_says_why(tmp_path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_weights(tmp_path / "nothing.npz")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"none of \.npz, \.npy, \.safetensors, \.json"):
        read_weights(tmp_path / "a.txt")
    for name in ("broken.npz", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
        with pytest.raises(InputError, match="cannot read attention from"):
            read_weights(tmp_path / name)
    np.savez(tmp_path / "two.npz", a=np.zeros((2, 3, 4, 4)), b=np.zeros((2, 3, 4, 4)))
    with pytest.raises(InputError, match=r"a is \[2, 3, 4, 4\], not \[head, query, key\] of one text"):
        read_weights(tmp_path / "two.npz")
    np.savez(tmp_path / "ids.npz", ids=np.arange(3))
    with pytest.raises(InputError, match=r"no array of weights .* only ids"):
        read_weights(tmp_path / "ids.npz")
    np.savez(tmp_path / "old.npz", attnscope=np.array('{"format": 99}'))
    with pytest.raises(InputError, match="its layout is number 99"):
        read_weights(tmp_path / "old.npz")
    np.savez(tmp_path / "odd.npz", attnscope=np.array('{"format": 1}'))
    with pytest.raises(InputError, match="says nothing about 'axes'"):
        read_weights(tmp_path / "odd.npz")


def test_what_cannot_be_written_says_why(tmp_path) -> None:
    with pytest.raises(
        OutputError, match=r"'.xls' is not a data format; there are npz, safetensors, json, csv"
    ):
        save_weights(kinds(), tmp_path / "maps.xls")
    with pytest.raises(OutputError, match="there is no folder"):
        save_weights(kinds(), tmp_path / "nowhere" / "maps.npz")
    with pytest.raises(ValueError, match="not \\(2, 2\\)"):
        save_weights({"encoder": [(0, weights(np.eye(2), range(2), range(2)))]}, tmp_path / "maps.npz")
    assert list(tmp_path.iterdir()) == []
