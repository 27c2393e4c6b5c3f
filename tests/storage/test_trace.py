"""A trace gives what its model gives; a false trace is refused in one sentence."""

from __future__ import annotations

import copy
import json
import math
import os

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save

from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput, load
from attnscope.models.served import open_file
from attnscope.models.trace_recording import record_trace
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.storage.tensors import read_tensors
from attnscope.storage.trace import read_trace, write_trace
from attnscope.storage.trace.file import KEY_FIELD, SUFFIX
from attnscope.storage.trace.layout import FORMAT, allowed_of, pack_mask, traced_rows, unpack_rows
from tests.capture.observing import MapObserver
from tests.capture.tiny import FAMILIES, inputs
from tests.tools.coverage.recipes import make

# ALiBi of two makes, one key head for all, windows in some layers, windows of images in a batch, chunks
# that are put at their keys; an image in front of a text; layers without attention; an old encoder
TYPES = ["bloom", "mpt", "falcon", "gemma3_text", "swin", "longformer", "florence2", "jamba", "squeezebert"]


@pytest.fixture(
    scope="module", params=[*FAMILIES, *(pytest.param(kind, marks=pytest.mark.sweep) for kind in TYPES)]
)
def pair(request, tmp_path_factory):
    """A model with its input, and the trace of it, read from its file."""
    name = request.param
    if name in FAMILIES:
        module, given = FAMILIES[name].build(), inputs(FAMILIES[name].inputs)
    else:
        module, _, given = make(name, [])
    tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
    others = {key: value for key, value in given.items() if key not in tensors}
    model, prepared = Model(name, module, None), ModelInput(tensors, {}, (), settings=others)
    file = tmp_path_factory.mktemp("traces") / f"{name}.trace"
    write_trace(record_trace(model, prepared), file)
    return (model, prepared), open_file(file)


@pytest.mark.sweep
@pytest.mark.sealed  # as the fixture, which is older than the test
def test_trace_rows_equal_model_rows_in_torch_and_numpy(pair):
    (model, prepared), traced = pair
    live, kept = MapObserver(), MapObserver()
    assert model.run(prepared, [live]) == traced.run(traced.prepared, [kept])
    arrays, calls = traced.trace.arrays, traced.trace.description.calls
    for ours, theirs, call in zip(live.maps, kept.maps, calls, strict=True):
        real = ours.allowed.any(-1, keepdim=True)  # rows of padding are zeros in a trace
        weights = ours.weights.where(real, theirs.weights)
        for mine, other in ((weights, theirs.weights), (ours.allowed, theirs.allowed)):
            torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
        size, rows = traced.trace.size(call)[0], weights.float().numpy()
        np.testing.assert_allclose(traced_rows(call.rows, arrays, 0, size), rows, atol=1e-6)
        assert (allowed_of(call.rows, arrays, 0, size) == ours.allowed.numpy()).all()
        part = traced_rows(call.rows, arrays, size // 2, size, [call.heads - 1])
        np.testing.assert_allclose(part, rows[:, -1:, size // 2 :], atol=1e-6)


def test_mask_is_stored_as_run_ends_or_bits() -> None:
    held, nothing = dict[str, np.ndarray](), np.zeros((9, 9), bool)
    row, key = np.indices((9, 9))
    band = abs(row - key) < 3
    runs = key <= row, key >= row, band, nothing, band & (row != 4)
    holes = np.random.default_rng(0).random((9, 9)) < 0.5, ~band
    for form, opened in (*(("runs", each) for each in runs), *(("bits", each) for each in holes)):
        mask = pack_mask(opened[None, None], lambda name, array: held.update({name: array}) or name)
        assert (mask.form, mask.keys) == (form, 9)
        for start, stop in ((0, 9), (2, 5), (8, 9)):
            np.testing.assert_array_equal(unpack_rows(mask, held, start, stop)[0, 0], opened[start:stop])


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The bytes of a small trace, its description and its arrays."""
    model = load("own-causal")
    file = tmp_path_factory.mktemp("kept") / f"own{SUFFIX}"
    write_trace(record_trace(model, model.prepare("The cat sat.")), file)
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return content, json.loads(json.loads(content[8 : 8 + size])["__metadata__"][KEY_FIELD]), load_file(file)


def change(path, value):
    """A description with one thing in it changed."""
    *most, last = path

    def changed(said, arrays):
        for part in most:
            said = said[part]
        said[last] = value
        if value is DELETE:
            del said[last]

    return changed


DELETE = object()
ROWS = ("calls", 0, "rows")
PIXELS = {"name": "image 1", "array": "pixels", "grid": None, "tokens": 0, "boxes": []}
SOUND = {"seconds": 0.02, "frames": 5, "begin": 0.0, "array": "tones"}


def batched(said, arrays):
    """A million texts, of which the mask alone takes eight bytes each."""
    call = said["calls"][0]
    keys = len(arrays[call["rows"]["key"]][0, 0])
    arrays["crowd"] = np.tile(np.array([0, keys], np.int32), (10**6, 1, 1, 1))
    call["batch"] = 10**6
    call["rows"]["masks"].append({"form": "runs", "array": "crowd", "keys": keys})


def repeated(said, arrays):
    """A layer nine thousand times over."""
    said["calls"] = [said["calls"][0] | {"layer": layer} for layer in range(9000)]


CALL = ("calls", 0)
FIELDS = {  # what each part of a description must not be
    ("trace",): (FORMAT + 1, "1", DELETE),
    ("extra",): (1,),
    ("axes",): (DELETE,),
    ("model", "name"): (7,),
    ("calls",): ([], {}),
    ("tokens",): (-1,),
    ("axes", 0): ({"start": 0, "stop": 10**9}, {"start": 5, "stop": 1}, [1, 2, 3]),
    (*CALL, "queries"): (99,),
    (*CALL, "layer"): (10**9, True, 0.5),
    (*CALL, "heads"): (10**400, 0),
    (*CALL, "batch"): (10**6,),
    (*CALL, "dtype"): ("__class__",),
    (*CALL, "kind"): ("sideways",),
    (*CALL, "source"): ("thin air",),
    (*CALL, "rows"): (None, {"form": "heads", "parts": [], "counts": []}),
    (*ROWS, "form"): ("magic", "weights"),
    (*ROWS, "query"): ("nothing",),
    (*ROWS, "key"): ("__metadata__",),
    (*ROWS, "stop"): (10**6,),
    (*ROWS, "scale"): ([1], "small"),
    (*ROWS, "sinks"): ("small",),
    (*ROWS, "masks"): (
        [{"form": "runs", "array": "runs", "keys": 5}],
        [{"form": "bits", "array": "bits", "keys": 10**9}],
    ),
    (*ROWS, "biases"): ([{"array": "small", "open": None}],),
    ("images",): (
        *([PIXELS | {"array": "runs"}], [PIXELS | {"tokens": 99}], PIXELS),
        [PIXELS | {"boxes": [{"id": 1, "edges": [0.0, 0.0, 1e30, 1.0]}]}],
    ),
    ("heard",): tuple(
        SOUND | lie
        for lie in ({"array": "runs"}, {"frames": 8}, {"frames": 0}, {"seconds": -1.0}, {"begin": -3.0})
    ),
    ("messages",): (["user: hello"], [{"content": "hello"}]),
    ("scores", 0, "scores"): ([],),
    ("scores", 0, "site"): ("L0H0",),
    ("calls", 1, "layer"): (0,),  # two calls of one layer
}
LIES = {
    f"{'.'.join(map(str, path))} {n}": change(path, lie)
    for path, lies in FIELDS.items()
    for n, lie in enumerate(lies)
}
LIES |= {"a batch that a mask alone has": batched, "thousands of layers with the same arrays": repeated}


def forge(kept, path, lie):
    _, said, arrays = copy.deepcopy(kept)
    arrays |= {
        "pixels": np.zeros((2, 2, 3), np.uint8),
        "tones": np.zeros((80, 7), np.float32),
        "small": np.zeros((3, 1, 1, 7), np.float32),
        "runs": np.zeros((9, 1, 1, 2), np.int32),
        "bits": np.zeros((1, 1, 1, 4), np.uint8),
    }
    lie(said, arrays)
    path.write_bytes(save(arrays, {KEY_FIELD: json.dumps(said)}))
    return path


@pytest.mark.sweep
@pytest.mark.parametrize("lie", LIES)
def test_false_trace_description_is_one_sentence(kept, tmp_path, lie):
    assert read_trace(forge(kept, tmp_path / "a.trace", lambda said, arrays: None)).description.calls
    with pytest.raises(InputError, match=r"cannot read the trace .*a\.trace: ") as refused:
        open_file(forge(kept, tmp_path / "a.trace", LIES[lie]))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500 + len(str(tmp_path))


def test_deeply_nested_trace_description_is_refused(kept, tmp_path):
    def nest(said, arrays):
        rows = said["calls"][0]["rows"]
        for _ in range(300):
            rows = {"form": "heads", "parts": [rows], "counts": [said["calls"][0]["heads"]]}
        said["calls"][0]["rows"] = rows

    with pytest.raises(InputError, match=r"^cannot read the trace .*: it is nested too deep$"):
        open_file(forge(kept, tmp_path / "a.trace", nest))


def joined(counts, parts=1):
    return lambda rows, heads, size: {"form": "heads", "parts": [rows] * parts, "counts": counts(heads)}


def stepped(starts, shifts=(0,), keys=0):
    def made(rows, heads, size):
        steps = {"starts": starts(size), "shifts": shifts, "keys": size + keys}
        return {"form": "steps", "parts": [rows] * (len(starts(size)) - 1), **steps}

    return made


WHOLE = {"heads": joined(lambda heads: [heads]), "steps": stepped(lambda size: [0, size])}
NO_LAYERS = [
    *((joined(counts), "parts do not make up") for counts in (lambda n: [n - 1], lambda n: [n + 1])),
    *((joined(counts), "parts do not make up") for counts in (lambda n: [n, 0], lambda n: [])),
    (joined(lambda heads: [heads, 0], parts=2), "parts do not make up"),
    (joined(lambda heads: [1, heads - 1], parts=2), "is not|do not|has"),
    *((stepped(starts), "steps do not make up") for starts in (lambda n: [0, n - 1], lambda n: [1, n])),
    *((stepped(lambda n: [0, n], *more), "steps do not make up") for more in (((0, 0),), ((0,), 1))),
    (stepped(lambda size: [0, 0, size], (0, 0)), "steps do not make up"),
]


@pytest.mark.parametrize("form", WHOLE)
def test_trace_rows_wrapped_as_one_part_are_unchanged(kept, tmp_path, form):
    def wrap(said, arrays):
        for call in said["calls"]:
            call["rows"] = WHOLE[form](call["rows"], call["heads"], len(said["axes"][0]))

    plain, wrapped = tmp_path / "plain.trace", forge(kept, tmp_path / "a.trace", wrap)
    plain.write_bytes(kept[0])
    for head in (Head("L0H1"), Head("L1H0")):
        np.testing.assert_array_equal(open_file(wrapped).weights(head), open_file(plain).weights(head))


@pytest.mark.parametrize(("lie", "sentence"), NO_LAYERS)
def test_trace_parts_that_do_not_form_a_layer_are_refused(kept, tmp_path, lie, sentence):
    def wrap(said, arrays):
        call = said["calls"][0]
        call["rows"] = lie(call["rows"], call["heads"], len(said["axes"][0]))

    with pytest.raises(InputError, match=f"^cannot read the trace .*: .*({sentence})"):
        open_file(forge(kept, tmp_path / "a.trace", wrap))


def test_file_that_is_no_trace_is_named(tmp_path):
    no_tensors = b"", b"\0" * 8, b"\xff" * 64, (2**60).to_bytes(8, "little") + b"{}", b"{}" * 100
    for number, content in enumerate(no_tensors):
        (tmp_path / f"{number}.trace").write_bytes(content)
    (tmp_path / "a.trace").write_bytes(save({"encoder.00": np.zeros((1, 2, 2), np.float32)}))
    (tmp_path / "b.trace").mkdir()
    for name, sentence in (
        *((f"{number}.trace", "damaged, or no safetensors file") for number in range(len(no_tensors))),
        ("a.trace", "it is not a trace: attnscope makes one with --save-trace"),
        ("b.trace", "is a folder"),
        ("c.trace", "no such file"),
        ("/dev/zero", "a device"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_trace(tmp_path / name)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [{"softcap": 0.0}, {"scale": math.nan}, {"scale": 1e308}, {"softcap": 1e999}])
def test_extreme_trace_values_give_nan_without_a_warning(kept, tmp_path, odd):
    file = forge(kept, tmp_path / "a.trace", lambda said, arrays: said["calls"][0]["rows"].update(odd))
    model = open_file(file)
    assert model.weights(Head("L0H1")).shape == (6, 6)
    if math.nan in odd.values():  # which is shown as a model shows it
        assert any(
            "not finite numbers" in note for note in one_head(model, model.prepared, "L0H1").heatmap.notes
        )


def test_trace_text_is_cleaned_of_control_codes(kept, tmp_path):
    def paint(said, arrays):
        said["model"]["name"] = "a\x1b[31m"
        said["model_notes"] = ["b\x1b]0;c\x07"]
        for call in said["calls"]:
            call["kernel"] = call["name"] = "d\x1b[2J"
        for found in said["scores"]:
            found["site"]["name"] = "d\x1b[2J"
            found["absent"] = {"segment": "e\x1b"}

    model = open_file(forge(kept, tmp_path / "a.trace", paint))
    seen = measure_heads(model, model.prepared, Selection())
    told = [model.name, model.title, *model.notes, seen.title, seen.ran, *seen.notes]
    told += [reason for head in seen.heads for reason in head.absent.values()] + [seen.heads[0].site.name]
    assert not any("\x1b" in text or "\x07" in text for text in told)


@pytest.mark.parametrize("overwrite", [lambda content: content[:5000], lambda content: content[:-1] + b"\1"])
def test_trace_overwritten_after_opening_is_unchanged_or_refused(tmp_path, kept, monkeypatch, overwrite):
    path = tmp_path / "a.trace"
    path.write_bytes(kept[0])
    trace = read_trace(path)
    monkeypatch.setattr("attnscope.storage.tensors.MOST_WHOLE_BYTES", 0)
    large = read_trace(path)
    os.utime(path, ns=(1, 1))
    with path.open("r+b") as file:
        file.write(overwrite(kept[0]))
        file.truncate()
    assert all(np.array_equal(trace.arrays[name], array) for name, array in kept[2].items())
    with pytest.raises(InputError, match="was overwritten while it was read"):
        [large.arrays[name] for name in large.arrays]


@pytest.mark.parametrize(
    "lie",
    [
        {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 8]}},
        {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"},
        {"a": {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": ["F32"], "shape": 3, "data_offsets": None}},
        {"a": 3},
        {"__metadata__": {"x": 1}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
        [],
    ],
)  # fmt: skip
def test_false_tensor_header_is_one_sentence(tmp_path, lie):
    header = json.dumps(lie).encode()
    for name, read in (("a.trace", read_trace), ("a.safetensors", read_tensors)):
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(InputError, match=r"cannot read (the trace|tensors from) "):
            read(tmp_path / name)
