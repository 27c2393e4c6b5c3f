"""Files that lie about their size or hold what no attention is: a sentence, in seconds and without memory."""

from __future__ import annotations

import io
import json
import os
import zipfile

import numpy as np
import pytest
import torch

from attnscope.errors import AttnscopeError, InputError
from attnscope.storage.arrays import read_weights
from attnscope.storage.tensors import read_tensors

resource = pytest.importorskip("resource", reason="Windows limits no memory")

REFUSED = r"unpack to|of memory are free"
MOST = 1 << 30
"""Bytes that reading any of these may take."""

PLACE = ["a", 0, 1, False, None, None]


def described(**changes: object) -> dict:
    """A file as it is saved here, with one thing changed."""
    place = changes.pop("place", PLACE)
    layer = {"kind": "encoder", "layer": 0, "array": "x", "axes": 0} | changes.pop("layer", {})
    content = {
        "weights": {"x": [[[1.0]]]},
        "format": 1,
        "title": "t",
        "notes": [],
        "axes": [{"queries": [place], "keys": [place]}],
        "layers": [layer],
    }
    return content | changes


def test_the_plain_file_is_read(tmp_path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(described()))
    assert list(read_weights(tmp_path / "a.json").kinds) == ["encoder"]


LIES = {
    "a layer of a billion": described(layer={"layer": 10**9}),
    "a negative layer": described(layer={"layer": -1}),
    "a layer of 400 digits": described(layer={"layer": 10**400}),
    "half a layer": described(layer={"layer": 0.5}),
    "an infinite layer": described(layer={"layer": float("inf")}),
    "a layer that is true": described(layer={"layer": True}),
    "a layer that is a list": described(layer={"layer": [0]}),
    "negative axes": described(layer={"axes": -1}),
    "axes that are not there": described(layer={"axes": 1}),
    "another kind": described(layer={"kind": "sideways"}),
    "a kind that is a list": described(layer={"kind": []}),
    "an array that is not there": described(layer={"array": "y"}),
    "an array that is a list": described(layer={"array": []}),
    "a layer twice": described(layers=[{"kind": "encoder", "layer": 0, "array": "x", "axes": 0}] * 2),
    "one array in many layers": described(
        layers=[{"kind": "encoder", "layer": n, "array": "x", "axes": 0} for n in range(9000)]
    ),
    "a place with infinite tokens": described(place=["a", 0, float("inf"), False, None, None]),
    "a place of no tokens": described(place=["a", 3, 3, False, None, None]),
    "a negative place": described(place=["a", -2, -1, False, None, None]),
    "a place of 10**30 tokens": described(place=["a", 0, 10**30, False, None, None]),
    "a place without text": described(place=[None, 0, 1, False, None, None]),
    "a place of two parts": described(place=["a", 0]),
    "a place that is a text": described(place="abcdef"),
    "a word of one number": described(place=["a", 0, 1, False, [0], None]),
    "an id of 400 digits": described(place=["a", 0, 1, False, None, 10**400]),
    "a title that is a number": described(title=3),
    "notes that are a text": described(notes="abc"),
    "axes that are a number": described(axes=3),
    "layers that are null": described(layers=None),
    "another format": described(format=10**400),
    "weights of 400 digits": described(weights={"x": [[[10**400]]]}),
    "ragged weights": described(weights={"x": [[[1.0], [1.0, 2.0]]]}),
    "weights that are texts": described(weights={"x": [[["one"]]]}),
    "no weights": described(weights={}),
    "huge integers alone": [[10**400]],
    "a mapping of mappings": {"a": {"b": {}}},
}


@pytest.mark.parametrize("name", LIES)
def test_a_description_that_lies_is_one_sentence(name, tmp_path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(LIES[name]))
    with pytest.raises(InputError, match="cannot read attention from") as caught:
        read_weights(tmp_path / "a.json")
    assert len(str(caught.value)) < 500


RAW = {
    "nested deep.json": b"[" * 100_000 + b"]" * 100_000,
    "nested deep in a name.json": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "digits.json": b"[[" + b"9" * 100_000 + b"]]",
    "half a character.json": b'{"tokens": ["\\ud800"], "a": 1}',
    "not utf-8.json": b"\xff\xfe\x00",
    "empty.npz": b"",
    "empty.npy": b"",
    "empty.safetensors": b"",
    "header of exabytes.safetensors": b"\xff" * 8 + b"{}",
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_file_of_weights_are_one_sentence(name, tmp_path) -> None:
    (tmp_path / name).write_bytes(RAW[name])
    with pytest.raises(InputError, match="cannot read attention from"):
        read_weights(tmp_path / name)


def peak() -> int:
    """The most memory that this process ever took, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_one_long_token_among_ten_thousand_empty_ones_takes_no_memory(tmp_path) -> None:
    weights = np.full((1, 2, 2), 0.5).tolist()
    content = {"tokens": ["x" * 200_000, *[""] * 10_000], "a": weights}
    (tmp_path / "a.json").write_text(json.dumps(content))
    before = peak()
    assert [place.text for place in read_weights(tmp_path / "a.json").kinds["encoder"][0][1].keys] == [
        "0",
        "1",
    ]
    assert peak() - before < MOST


def packed(path, name: str, array: np.ndarray) -> None:
    """An array of an NPZ that packs very well."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as file:
        header = io.BytesIO()
        kind = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(header, kind)
        file.write(header.getvalue())
        for _ in range(0, array.nbytes, 1 << 24):
            file.write(bytes(1 << 24))


@pytest.mark.parametrize(
    ("dtype", "shape"), [("<f4", (8, 4096, 4096)), ("<U131072", (1024,)), ("|b1", (1, 1 << 14, 1 << 15))]
)
def test_arrays_packed_a_thousand_to_one_are_refused_before_they_are_unpacked(dtype, shape, tmp_path) -> None:
    claimed = np.lib.stride_tricks.as_strided(np.zeros((), dtype), shape, (0,) * len(shape))
    packed(tmp_path / "a.npz", "tokens.npy", claimed)
    assert (tmp_path / "a.npz").stat().st_size < 1 << 20
    before = peak()
    with pytest.raises(AttnscopeError, match=REFUSED):
        read_weights(tmp_path / "a.npz")
    with pytest.raises(AttnscopeError, match=REFUSED):
        read_tensors(tmp_path / "a.npz")
    assert peak() - before < MOST


def test_a_tensor_that_repeats_one_number_a_billion_times_is_refused(tmp_path) -> None:
    torch.save({"x": torch.zeros(1).expand(1 << 35)}, tmp_path / "a.pt")
    with pytest.raises(AttnscopeError, match=REFUSED):
        read_tensors(tmp_path / "a.pt")


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", "g", ">g"])
def test_arrays_of_other_machines_and_long_doubles_are_read_as_the_same_numbers(dtype, tmp_path) -> None:
    maps = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 4)).astype(dtype)
    np.savez(tmp_path / "a.npz", a=maps[0], b=maps[1])
    np.save(tmp_path / "a.npy", maps)
    for name in ("a.npz", "a.npy"):
        (layers,) = read_weights(tmp_path / name).kinds.values()
        for (_, weights), expected in zip(layers, maps, strict=True):
            np.testing.assert_array_equal(
                torch.from_numpy(weights.values.copy()), expected.astype(np.float64)
            )
    tensors = read_tensors(tmp_path / "a.npz")
    np.testing.assert_array_equal(tensors["b"].double(), maps[1].astype(np.float64))


@pytest.mark.parametrize("shape", [(0, 3, 3), (10**9, 0, 1, 1), (10**9, 1, 0, 1), (0,) * 30])
def test_empty_arrays_of_any_shape_hold_no_weights(shape, tmp_path) -> None:
    np.savez(tmp_path / "a.npz", np.zeros(shape, np.float32))
    with pytest.raises(InputError, match="it has no array of weights"):
        read_weights(tmp_path / "a.npz")


@pytest.mark.parametrize("shape", [(20_000, 1, 1, 1), (200_000, 1, 1), (1, 1, 2_000_000)])
def test_more_layers_heads_or_tokens_than_any_model_has_are_refused(shape, tmp_path) -> None:
    np.savez(tmp_path / "a.npz", np.zeros(shape, np.float32))
    with pytest.raises(InputError, match="cannot read attention from"):
        read_weights(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".json", ".safetensors", ".pt"])
def test_pipes_and_endless_devices_are_named_and_never_read(suffix, tmp_path) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a named pipe"), ("zero", "a device")):
        path = tmp_path / f"{name}{suffix}"
        with pytest.raises(InputError, match=f"is {kind}, not a file"):
            read_weights(path)
        with pytest.raises(InputError, match=f"is {kind}, not a file"):
            read_tensors(path)
