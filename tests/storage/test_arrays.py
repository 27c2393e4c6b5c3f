"""Attention as data: written, read by other tools and read back; false files are refused in one sentence,
within seconds and without allocating memory.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import pickle
import re
import weakref
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attnscope.axes import weights
from attnscope.errors import AttnscopeError, InputError, OutputError, SizeError
from attnscope.models import load
from attnscope.questions.layers import whole_layers
from attnscope.questions.selection import Selection
from attnscope.storage import arrays as data
from attnscope.storage import tensors
from attnscope.storage.arrays import read_weights, save_weights
from attnscope.storage.tensors import read_tensors
from tests.render.screen import tokens

TEXT = tokens("the", "\n", "=1+1", 'a,"b"', "猫")
CAUSAL = np.tril(np.ones((5, 5), bool))


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Rows that sum to 1.  -> [*shape], the last axis twice"""
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32)


KINDS = {
    "encoder": [(layer, weights(drawn(2, 5, 5, seed=layer), TEXT, TEXT)) for layer in (0, 3, 11)],
    "decoder": [(0, weights(drawn(2, 5, 5, seed=7) * CAUSAL, TEXT, TEXT, CAUSAL))],
}


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "json"])
def test_saved_weights_are_read_back_unchanged(suffix: str, tmp_path) -> None:
    path = tmp_path / f"maps.{suffix}"
    save_weights(KINDS, path, title="a model", notes=("untrained",))
    found = read_weights(path)
    assert (str(found.title), [str(note) for note in found.notes]) == ("a model", ["untrained"])
    assert list(found.kinds) == ["encoder", "decoder"]
    for kind, layers in KINDS.items():
        for (number, before), (layer, after) in zip(layers, found.kinds[kind], strict=True):
            assert layer == number
            np.testing.assert_array_equal(after.values.astype(np.float32), before.values)
            assert np.array_equal(*np.broadcast_arrays(after.allowed, before.allowed))
            assert (after.queries, after.keys) == (before.queries, before.keys)


def test_npz_arrays_are_usable_by_other_tools(tmp_path) -> None:
    save_weights(KINDS, tmp_path / "maps.npz")
    maps = np.load(tmp_path / "maps.npz")
    for layer, field in KINDS["encoder"]:
        np.testing.assert_array_equal(maps[f"encoder.{layer:02}"], field.values)
    assert maps["tokens"].tolist() == [token.text for token in TEXT]
    np.testing.assert_array_equal(maps["decoder.00.allowed"], CAUSAL[None])
    assert "encoder.00.allowed" not in maps


def test_json_has_exact_weights_and_null_where_masked(tmp_path) -> None:
    save_weights(KINDS, tmp_path / "maps.json", title="a model")
    found = json.loads((tmp_path / "maps.json").read_text("utf-8"))
    assert found["title"] == "a model"
    assert found["axes"][0]["keys"][3] == ['a,"b"', 3, 4, False, [0, 3], 3, None]
    assert np.array_equal(np.float32(found["weights"]["encoder.03"]), KINDS["encoder"][1][1].values)
    decoder = np.array(found["weights"]["decoder.00"], object)
    np.testing.assert_array_equal(decoder == None, np.broadcast_to(~CAUSAL, (2, 5, 5)))  # noqa: E711


def test_csv_has_a_line_per_unmasked_weight(tmp_path) -> None:
    save_weights(KINDS, tmp_path / "maps.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "maps.csv").read_text("utf-8"), newline="")))
    assert len(rows) == 3 * 2 * 25 + 2 * 15
    *place, weight = rows[25 + 7].values()
    assert place == ["encoder", "0", "1", "1", "\n", "2", "'=1+1"]
    assert np.float32(weight) == KINDS["encoder"][0][1].values[1, 1, 2]


@pytest.mark.parametrize("form", ["npz", "json", "csv"])
def test_saving_holds_one_layer_at_a_time(form: str, tmp_path) -> None:
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
    ("shapes", "layers", "heads"),
    [
        *(({"a": (4, 4)}, 1, 1), ({"a": (3, 4, 4)}, 1, 3), ({"a": (2, 3, 4, 4)}, 2, 3)),
        *(({"a": (2, 1, 3, 4, 4)}, 2, 3), ({"l0": (3, 4, 4), "l1": (3, 4, 4)}, 2, 3)),
        ({"arr_0": (1, 3, 4, 4), "arr_1": (1, 3, 4, 4)}, 2, 3),
    ],
)
def test_arrays_of_other_tools_are_read(shapes: dict, layers: int, heads: int, tmp_path) -> None:
    arrays = {name: drawn(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    np.savez(tmp_path / "theirs.npz", tokens=np.array(list("abcd")), **arrays)
    found = read_weights(tmp_path / "theirs.npz")
    ((kind, read),) = found.kinds.items()
    assert (kind, len(read), len(read[0][1].values)) == ("encoder", layers, heads)
    assert [place.text for place in read[0][1].keys] == list("abcd")
    assert "not known" in str(found.notes[0])
    whole = np.concatenate([field.values.ravel() for _, field in read])
    np.testing.assert_array_equal(whole, np.concatenate([array.ravel() for array in arrays.values()]))


def test_layers_sort_in_natural_order_and_bfloat16_is_exact(tmp_path) -> None:
    maps = {f"layer.{i}": torch.from_numpy(drawn(3, 4, 4, seed=i)).bfloat16() for i in range(12)}
    save_file(maps, tmp_path / "theirs.safetensors")
    (layers,) = read_weights(tmp_path / "theirs.safetensors").kinds.values()
    for (_, found), expected in zip(layers, maps.values(), strict=True):
        np.testing.assert_array_equal(found.values, expected.float().numpy())


def refuses(path: Path, sentence: str = "cannot read attention from") -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        read_weights(path)
    assert len(str(caught.value)) < 500 + len(str(path))
    assert "\n" not in str(caught.value)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a file ran code')",))


def test_weights_file_never_runs_code(tmp_path) -> None:
    np.savez(tmp_path / "bomb.npz", a=np.array([Bomb()], object))
    (tmp_path / "bomb.npy").write_bytes(pickle.dumps(Bomb()))
    for name in ("bomb.npz", "bomb.npy"):
        refuses(tmp_path / name, "could run code")


def test_unreadable_weights_file_is_explained(tmp_path) -> None:
    refuses(tmp_path / "nothing.npz", "no such file")
    (tmp_path / "a.txt").write_text("x")
    refuses(tmp_path / "a.txt", r"none of \.npz, \.npy, \.safetensors, \.json")
    two = np.zeros((2, 3, 4, 4))
    for arrays, sentence in (
        ({"a": two, "b": two}, r"a is float64 \[2, 3, 4, 4\], not weights \[head, query, key\] of one text"),
        ({"ids": np.arange(3)}, r"no array of weights .* only ids"),
        ({"attnscope": np.array('{"format": 99}')}, "its layout is number 99"),
        ({"attnscope": np.array('{"format": 1}')}, "says nothing about 'axes'"),
    ):
        np.savez(tmp_path / "odd.npz", **arrays)
        refuses(tmp_path / "odd.npz", sentence)
    for content in (drawn(2, 3, 4, 4).tolist(), {"weights": [1.0]}, {"a": drawn(3, 4, 4).tolist()}):
        (tmp_path / "theirs.json").write_text(json.dumps(content))
        refuses(tmp_path / "theirs.json", "attnscope did not write it: save the arrays of other tools")


def test_unwritable_output_is_explained(tmp_path) -> None:
    for name, sentence in (
        ("maps.xls", "'.xls' is not a data format; there are npz, safetensors, json, csv"),
        ("nowhere/maps.npz", "there is no folder"),
    ):
        with pytest.raises(OutputError, match=sentence):
            save_weights(KINDS, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def header_of(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_false_array_header_allocates_no_memory(tmp_path) -> None:
    content = header_of((12, 10**6, 10**6)) + b"\0" * 64
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", content)
    (tmp_path / "a.npy").write_bytes(content)
    for name in ("a.npz", "a.npy"):
        refuses(tmp_path / name, "claims 48,000,000,000,000 bytes of weights and has 64")


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "json"])
def test_truncated_weights_file_is_one_sentence(suffix: str, tmp_path) -> None:
    path = tmp_path / f"a.{suffix}"
    save_weights(KINDS, path)
    content = path.read_bytes()
    for cut in range(0, len(content), max(len(content) // 40, 1)):
        path.write_bytes(content[:cut])
        refuses(path)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_flipped_bit_gives_weights_or_one_sentence(packing: int, tmp_path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("a.npy", header_of((1, 2, 2)) + drawn(1, 2, 2).tobytes())
    content, refused = path.read_bytes(), 0
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            read_weights(path)
        except (InputError, SizeError):
            refused += 1
    assert refused > len(content)


def test_lower_triangular_maps_are_causal_and_non_square_cross(
    tmp_path,
) -> None:
    np.save(tmp_path / "a.npy", np.tril(drawn(1, 2, 5, 5)))
    found = read_weights(tmp_path / "a.npy")
    ((kind, ((_, field),)),) = found.kinds.items()
    assert kind == "decoder"
    np.testing.assert_array_equal(field.allowed[0], CAUSAL)
    assert "above the diagonal is all 0" in str(found.notes[0])
    np.save(tmp_path / "a.npy", drawn(1, 2, 3, 5))
    ((kind, ((_, field),)),) = read_weights(tmp_path / "a.npy").kinds.items()
    assert (kind, [place.label for place in field.keys]) == ("cross", ["0", "1", "2", "3", "4"])


def test_implausible_weights_are_noted_with_place_and_count(tmp_path) -> None:
    maps = drawn(2, 3, 5, 5)
    maps[0, 1, 2, 3], maps[0, 1, 2, 4] = -0.5, -0.25
    maps[1, 2, 4] *= 1.5
    np.savez(tmp_path / "theirs.npz", maps)
    notes = [str(note) for note in read_weights(tmp_path / "theirs.npz").notes]
    assert "negative weights in encoder layer 0: 2; entropies say nothing there" in notes
    assert "rows of encoder layer 1 that sum to more than 1: 1, up to 1.5" in notes
    assert len(notes) == 3
    np.savez(tmp_path / "half.npz", drawn(2, 3, 64, 64).astype(np.float16))
    assert len(read_weights(tmp_path / "half.npz").notes) == 1


def test_llama_cpp_weights_lose_cache_padding_keys(tmp_path):
    maps = np.tril(drawn(12, 2, 5, 5))
    padded = np.pad(maps, ((0, 0), (0, 0), (0, 0), (0, 27)))
    np.savez(tmp_path / "dump.npz", **{f"kq_soft_max-{layer}": each for layer, each in enumerate(padded)})
    found = read_weights(tmp_path / "dump.npz").kinds["decoder"]
    for (layer, field), (number, expected) in zip(found, enumerate(maps), strict=True):
        assert layer == number
        np.testing.assert_array_equal(field.values, expected)


REFUSED = r"unpack to|of memory are free"
PLACE = ["a", 0, 1, False, None, None, None]
LAYER = {"kind": "encoder", "layer": 0, "array": "x", "axes": 0}


def described(**changes: object) -> dict:
    """A file as it is saved here, with one thing changed."""
    place = changes.pop("place", PLACE)
    content = {"weights": {"x": [[[1.0]]]}, "format": 1, "title": "t", "notes": []}
    content |= {"axes": [{"queries": [place], "keys": [place]}], "layers": [LAYER | changes.pop("layer", {})]}
    return content | changes


LAYERS = {  # what each field of a layer must not be
    "layer": (10**9, -1, 10**400, 0.5, float("inf"), True, [0]),
    "axes": (-1, 1),  # there is one pair of axes
    "array": ("y", []),
    "kind": ([], "../../home", "", "encoder/x", "sideways"),
}
PLACES = (
    *([["a", *ends, False, None, None, None] for ends in ((0, float("inf")), (3, 3), (-2, -1), (0, 10**30))]),
    *([None, 0, 1, False, None, None, None], ["a", 0], "abcdef"),
    *(["a", 0, 1, False, [0], None, None], ["a", 0, 1, False, None, 10**400, None]),
    [*PLACE[:-1], 3],
)
FIELDS = {
    "layers": ([LAYER] * 2, [LAYER | {"layer": number} for number in range(9000)], None),
    "title": (3,),
    "notes": ("abc",),
    "axes": (3,),
    "format": (10**400,),
    "weights": ({"x": [[[10**400]]]}, {"x": [[[1.0], [1.0, 2.0]]]}, {"x": [[["one"]]]}, {}),
}
LIES = [
    *(described(layer={name: lie}) for name, lies in LAYERS.items() for lie in lies),
    *(described(place=lie) for lie in PLACES),
    *(described(**{name: lie}) for name, lies in FIELDS.items() for lie in lies),
]
ODD = ["nothing", "{}", "[]", "3", '"x"', "[[1, 2], [3]]", "[" * 100_000, '{"a": {}}', *map(json.dumps, LIES)]
FILES = {
    **{f"{number}.json": text.encode() for number, text in enumerate(ODD)},
    "nested deep in a name.json": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "digits.json": b"[[" + b"9" * 100_000 + b"]]",
    "half a character.json": b'{"tokens": ["\\ud800"], "a": 1}',
    "not utf-8.json": b"\xff\xfe\x00",
    "header of exabytes.safetensors": b"\xff" * 8 + b"{}",
    "empty.npy": b"",
    "broken.npz": b"PK\x03\x04 nothing",
}


@pytest.mark.parametrize("name", FILES)
def test_false_description_of_weights_is_one_sentence(name, tmp_path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(described()))
    assert list(read_weights(tmp_path / "a.json").kinds) == ["encoder"]
    (tmp_path / name).write_bytes(FILES[name])
    refuses(
        tmp_path / name,
        "is not a kind of attention: there are" if b"sideways" in FILES[name] else "cannot read",
    )


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    """Whatever runs takes fewer bytes than ``most`` beyond what this process ever took."""
    resource = pytest.importorskip("resource", reason="Windows limits no memory")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < most


@pytest.mark.parametrize(
    ("dtype", "shape"), [("<f4", (5, 4096, 4096)), ("<U131072", (640,)), ("|b1", (1, 1 << 14, 20 << 10))]
)
def test_highly_compressed_arrays_are_refused_before_unpacking(dtype, shape, tmp_path) -> None:
    path, size = tmp_path / "a.npz", math.prod(shape) * np.dtype(dtype).itemsize
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("tokens.npy", "w") as file:
        file.write(header_of(shape, dtype))
        for _ in range(0, size, 1 << 24):
            file.write(bytes(1 << 24))
    assert path.stat().st_size < 1 << 20
    with memory_below(1 << 30):
        for read in (read_weights, read_tensors):
            with pytest.raises(AttnscopeError, match=REFUSED):
                read(path)


def test_expanded_tensor_is_refused(tmp_path) -> None:
    torch.save({"x": torch.zeros(1).expand(1 << 35)}, tmp_path / "a.pt")
    with pytest.raises(AttnscopeError, match=REFUSED):
        read_tensors(tmp_path / "a.pt")


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", "g", ">g"])
def test_big_endian_and_long_double_arrays_keep_their_values(dtype, tmp_path) -> None:
    maps = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 4)).astype(dtype)
    np.savez(tmp_path / "a.npz", a=maps[0], b=maps[1])
    np.save(tmp_path / "a.npy", maps)
    for name in ("a.npz", "a.npy"):
        (layers,) = read_weights(tmp_path / name).kinds.values()
        for (_, read), expected in zip(layers, maps, strict=True):
            np.testing.assert_array_equal(torch.from_numpy(read.values.copy()), expected.astype(float))
    tensors = read_tensors(tmp_path / "a.npz")
    np.testing.assert_array_equal(tensors["b"].double(), maps[1].astype(np.float64))


NONE, MANY = "it has no array of weights", "cannot read attention from"


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        *(
            ((0, 3, 3), NONE),
            ((2, 0, 3), NONE),
            ((2, 3, 0), NONE),
            ((10**9, 0, 1, 1), NONE),
            ((10**9, 1, 0, 1), NONE),
            ((0,) * 30, NONE),
        ),
        *(((20_000, 1, 1, 1), MANY), ((200_000, 1, 1), MANY), ((1, 1, 2_000_000), MANY)),
    ],
)
def test_empty_or_oversized_arrays_are_refused(shape, sentence, tmp_path) -> None:
    np.savez(tmp_path / "a.npz", np.zeros(shape, np.float32))
    refuses(tmp_path / "a.npz", sentence)


@pytest.mark.parametrize("shape", [(0, 4, 4), (2, 0, 4), (2, 4, 0), (2, 4), (1, 2, 4, 4)])
def test_saved_layer_replaced_by_other_array_is_refused(shape, tmp_path) -> None:
    path = tmp_path / "a.npz"
    save_weights({"encoder": [(0, weights(drawn(2, 4, 4), range(4), range(4)))]}, path)
    with np.load(path) as saved:
        arrays = dict(saved)
    (name,) = (name for name, array in arrays.items() if array.shape == (2, 4, 4) and array.dtype.kind == "f")
    np.savez(path, **(arrays | {name: np.zeros(shape, np.float32)}))
    refuses(path, r"is float32 .*, not weights \[head, query, key\]")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".json", ".safetensors", ".pt"])
def test_pipes_and_devices_are_refused_unread(suffix, tmp_path) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a named pipe"), ("zero", "a device")):
        for read in (read_weights, read_tensors):
            with pytest.raises(InputError, match=f"is {kind}, not a file"):
                read(tmp_path / f"{name}{suffix}")


README = Path(data.__file__).with_name("README.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"(\w+):\n\n```python\n(.*?)```", README, re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model, folder = load("own"), tmp_path_factory.mktemp("heads")
    layers = whole_layers(model, model.prepare("The cat sat on the mat."), Selection())
    layers.save(folder / "heads.npz")
    layers.save(folder / "heads.safetensors")
    return folder


TOOLS = ["NumPy", "safetensors", "bertviz", "CircuitsVis"]


@pytest.mark.parametrize("tool", TOOLS)
def test_examples_for_other_tools_run(tool, folder, monkeypatch, capsys):
    assert list(EXAMPLES) == TOOLS
    pytest.importorskip(tool.lower(), reason=f"{tool} is not installed: its example cannot run")
    monkeypatch.chdir(folder)
    shown: list[object] = []
    if tool == "bertviz":  # what it would hand to a notebook
        monkeypatch.setitem(__import__("bertviz").head_view.__globals__, "display", shown.append)
    names: dict[str, object] = {}
    exec(EXAMPLES[tool], names)
    assert "maps" in names
    if tool == "bertviz":
        assert shown
    elif tool != "CircuitsVis":
        assert "0." in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_sparse_file_is_refused(tmp_path, suffix):
    """Its zeros take no place on the disk, and as much memory as other numbers."""
    path, size = tmp_path / f"a{suffix}", 1 << 29
    if suffix == ".npy":
        header = {"descr": "<f4", "fortran_order": False, "shape": (size // 256, 8, 8)}
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + size)
    else:
        entry = {"dtype": "F32", "shape": [size // 256, 8, 8], "data_offsets": [0, size]}
        header = json.dumps({"a": entry}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + size)
    if not 0 < 512 * path.stat().st_blocks < size // 100:
        pytest.skip("this disk has no sparse files")
    refuses(path, "unpack to")


def test_more_than_1000_layers_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **{f"{number}": np.full((1, 2, 2), 0.5) for number in range(1001)})
    refuses(tmp_path / "a.npz", "more than 1,000 layers")


def test_longest_registered_suffix_of_a_name_chooses_the_reader(tmp_path, monkeypatch) -> None:
    def read_halves(path):
        return {"0": np.full((1, 2, 2), json.loads(path.read_text("utf-8")))}

    monkeypatch.setattr(tensors, "plugins", lambda group: {".half.json": read_halves})
    path = tmp_path / "Head.v2.Half.JSON"
    path.write_text("0.5", "utf-8")
    ((_, found),) = read_weights(path).kinds["encoder"]
    assert found.values.tolist() == [[[0.5, 0.5], [0.5, 0.5]]]
    path.rename(plain := tmp_path / "head.json")
    with pytest.raises(InputError, match="attnscope did not write it"):
        read_weights(plain)
