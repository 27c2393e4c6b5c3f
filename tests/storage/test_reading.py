"""Files from elsewhere: what they may claim, what they may hold, and what is said of it."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attnscope.errors import InputError, SizeError
from attnscope.storage.arrays import read_weights, save_weights
from tests.storage.test_data import kinds


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Rows that sum to 1.  -> [*shape], the last axis twice"""
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32)


def npz_with(path, header: bytes, body: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header + body)


def header_of(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_a_header_that_claims_more_than_there_is_takes_no_memory(tmp_path) -> None:
    npz_with(tmp_path / "a.npz", header_of((12, 10**6, 10**6)), b"\0" * 64)
    (tmp_path / "a.npy").write_bytes(header_of((12, 10**6, 10**6)) + b"\0" * 64)
    for name in ("a.npz", "a.npy"):
        with pytest.raises(InputError, match=r"claims 48,000,000,000,000 bytes of weights and has 64"):
            read_weights(tmp_path / name)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "json"])
def test_a_file_cut_anywhere_is_one_sentence(suffix: str, tmp_path) -> None:
    save_weights(kinds(), tmp_path / f"whole.{suffix}")
    content = (tmp_path / f"whole.{suffix}").read_bytes()
    for cut in range(0, len(content), max(len(content) // 40, 1)):
        (tmp_path / f"cut.{suffix}").write_bytes(content[:cut])
        with pytest.raises(InputError, match="cannot read attention from"):
            read_weights(tmp_path / f"cut.{suffix}")


@pytest.mark.slow
@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_any_flipped_bit_gives_a_result_or_one_sentence(packing: int, tmp_path) -> None:
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


def test_json_is_read_back_as_it_was_saved(tmp_path) -> None:
    save_weights(kinds(), tmp_path / "maps.json", title="a model", notes=("untrained",))
    found = read_weights(tmp_path / "maps.json")
    assert (str(found.title), [str(note) for note in found.notes]) == ("a model", ["untrained"])
    for kind, layers in kinds().items():
        for (_, before), (_, after) in zip(layers, found.kinds[kind], strict=True):
            np.testing.assert_array_equal(after.values.astype(np.float32), before.values)
            np.testing.assert_array_equal(
                np.broadcast_to(after.allowed, (2, 5, 5)), np.broadcast_to(before.allowed, (2, 5, 5))
            )
            assert (after.queries, after.keys) == (before.queries, before.keys)


@pytest.mark.parametrize("nesting", ["array", "list of layers", "named", "one head"])
def test_json_of_other_tools_is_read(nesting: str, tmp_path) -> None:
    layers = drawn(2, 3, 4, 4)
    content = {
        "array": layers.tolist(),
        "list of layers": [layers[0][None].tolist(), layers[1][None].tolist()],
        "named": {"tokens": ["a", "b", "c", "d"], "l0": layers[0].tolist(), "l1": layers[1].tolist()},
        "one head": layers[0, 0].tolist(),
    }[nesting]
    (tmp_path / "theirs.json").write_text(json.dumps(content))
    ((kind, found),) = read_weights(tmp_path / "theirs.json").kinds.items()
    assert kind == "encoder"
    stacked = np.stack([field.values for _, field in found])
    np.testing.assert_array_equal(stacked, layers[:1, :1] if nesting == "one head" else layers)
    assert [place.text for place in found[0][1].keys] == (
        list("abcd") if nesting == "named" else list("0123")
    )


@pytest.mark.parametrize(
    "text", ["", "nothing", "{}", "[]", "3", '"x"', "[[1, 2], [3]]", "[" * 100_000, '{"a": {}}']
)
def test_json_that_is_no_attention_is_one_sentence(text: str, tmp_path) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(InputError, match="cannot read attention from"):
        read_weights(tmp_path / "odd.json")


def test_layers_with_nothing_above_the_diagonal_count_as_causal_and_a_note_says_so(tmp_path) -> None:
    maps = np.tril(drawn(2, 3, 4, 4))
    maps /= maps.sum(-1, keepdims=True)
    np.savez(tmp_path / "theirs.npz", maps)
    found = read_weights(tmp_path / "theirs.npz")
    ((kind, layers),) = found.kinds.items()
    assert kind == "decoder"
    np.testing.assert_array_equal(layers[0][1].allowed[0], np.tril(np.ones((4, 4), bool)))
    assert "above the diagonal is all 0" in str(found.notes[0])


def test_rows_and_columns_of_different_numbers_are_cross_attention(tmp_path) -> None:
    np.savez(tmp_path / "theirs.npz", drawn(1, 2, 3, 5))
    assert list(read_weights(tmp_path / "theirs.npz").kinds) == ["cross"]


def test_bfloat16_is_read_exactly(tmp_path) -> None:
    maps = torch.from_numpy(drawn(3, 4, 4)).bfloat16()
    save_file({"l0": maps}, tmp_path / "theirs.safetensors")
    ((_, ((_, field),)),) = read_weights(tmp_path / "theirs.safetensors").kinds.items()
    np.testing.assert_array_equal(field.values, maps.float().numpy())


def test_what_no_attention_is_like_is_told_with_place_and_count(tmp_path) -> None:
    maps = drawn(2, 3, 5, 5)
    maps[0, 1, 2, 3], maps[0, 1, 2, 4] = -0.5, -0.25
    maps[1, 2, 4] *= 1.5
    np.savez(tmp_path / "theirs.npz", maps)
    notes = [str(note) for note in read_weights(tmp_path / "theirs.npz").notes]
    assert "negative weights in encoder layer 0: 2; entropies say nothing there" in notes
    assert "rows of encoder layer 1 that sum to more than 1: 1, up to 1.5" in notes
    assert len(notes) == 3


def test_half_precision_alone_is_nothing_odd(tmp_path) -> None:
    np.savez(tmp_path / "theirs.npz", drawn(2, 3, 64, 64).astype(np.float16))
    assert len(read_weights(tmp_path / "theirs.npz").notes) == 1


@pytest.mark.parametrize("kind", ["../../home", "attention", "", "encoder/x"])
def test_a_kind_that_is_none_is_refused(kind: str, tmp_path) -> None:
    axis = [["a", 0, 1, False, None, None]] * 2
    description = {
        "format": 1, "title": "", "notes": [], "axes": [{"queries": axis, "keys": axis}],
        "layers": [{"kind": kind, "layer": 0, "array": "a", "axes": 0}],
    }  # fmt: skip
    np.savez(tmp_path / "odd.npz", attnscope=np.array(json.dumps(description)), a=drawn(1, 2, 2))
    with pytest.raises(InputError, match="is not a kind of attention: there are encoder, decoder, cross"):
        read_weights(tmp_path / "odd.npz")


def test_weights_that_llama_cpp_dumped_lose_the_keys_that_fill_up_its_cache(tmp_path):
    weights = np.tril(np.random.default_rng(0).random((12, 2, 5, 5)).astype(np.float32))
    weights /= weights.sum(-1, keepdims=True)
    padded = np.pad(weights, ((0, 0), (0, 0), (0, 0), (0, 27)))
    np.savez(tmp_path / "dump.npz", **{f"kq_soft_max-{layer}": each for layer, each in enumerate(padded)})
    layers = read_weights(tmp_path / "dump.npz").kinds["decoder"]
    assert [layer for layer, _ in layers] == list(range(12))
    for layer, found in layers:
        np.testing.assert_array_equal(found.values, weights[layer])
