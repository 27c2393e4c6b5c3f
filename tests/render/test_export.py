"""An export folder: its content, and that nothing is lost."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from attnscope.errors import OutputError
from attnscope.models import load
from attnscope.progress import listening
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.render.export import save_export
from attnscope.render.image import save_image
from attnscope.storage.arrays import read_weights
from attnscope.storage.folder import FORMATS, ExportPlan, Name, claim_folder, refuse_existing
from tests.models.folders import t5

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def model():
    return load("own")


@pytest.fixture(scope="module")
def text(model):
    return model.prepare(TEXT)


@pytest.fixture
def export(model, text, tmp_path):
    """Exports some layers of the text, the first one by default."""

    def save(folder=tmp_path, layers=(0,), text=text, dpi=40, **options):
        return save_export(model, text, Selection(layers=layers), folder, dpi=dpi, **options)

    return save


def contents(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


def names(folder) -> list[str]:
    return sorted(os.listdir(folder))


def manifest(folder) -> dict:
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def test_export_writes_heads_layers_overview_and_manifest(export, tmp_path):
    export(tmp_path / "out", layers=(0, 2))
    heads = [f"L{layer:02}H{head:02}.png" for layer in (0, 2) for head in range(8)]
    assert names(tmp_path / "out") == sorted([*heads, "L00.png", "L02.png", "overview.png", "manifest.json"])


def test_exported_head_equals_the_picture_of_show(export, model, text, tmp_path):
    export(layers=(1,), heads=(3,), dpi=60)
    save_image(one_head(model, text, "L1H3").heatmap, tmp_path / "shown.png", dpi=60)
    assert (tmp_path / "L01H03.png").read_bytes() == (tmp_path / "shown.png").read_bytes()


def test_export_draws_selected_heads_and_saves_whole_layers(export, tmp_path):
    export(layers=(1,), heads=(0, 7), formats=("png", "npz"))
    pictures = ["L01.png", "L01H00.png", "L01H07.png", "overview.png"]
    assert names(tmp_path) == sorted([*pictures, "heads.npz", "manifest.json"])
    ((layer, weights),) = read_weights(tmp_path / "heads.npz").kinds["encoder"]
    assert (layer, weights.values.shape) == (1, (8, 9, 9))


@pytest.mark.nightly
@pytest.mark.slow
def test_export_of_all_formats_is_byte_identical_on_repeat(export, tmp_path):
    for name in ("first", "second"):
        export(tmp_path / name, layers=(3,), heads=(1,), formats=FORMATS)
    assert {name.split(".")[1] for name in names(tmp_path / "first")} == set(FORMATS)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert (tmp_path / "first" / "L03H01.svg").read_text("utf-8").startswith("<?xml")


def test_manifest_records_origin_and_checksums(export, text, tmp_path):
    done = export(heads=(2,), formats=("png", "json"), command="attnscope export")
    told = manifest(tmp_path)
    assert told == json.loads(json.dumps(done))
    assert told["command"] == "attnscope export"
    own = {"name": "own", "class": "Encoder", "revision": None, "device": "cpu"}
    assert told["model"] == own | {"parameters": told["model"]["parameters"]}
    tokens, ids = zip(*((token.text, token.id) for token in text.tokens), strict=True)
    assert told["texts"][told["kinds"]["encoder"]["queries"]] == {"tokens": [*tokens], "ids": [*ids]}
    (site,) = (site for site in told["sites"] if site["layer"] == 0)
    assert (site["kernel"], site["dtype"], site["heads"]) == ("sdpa", "float32", 8)
    assert {"python", "torch", "matplotlib", "numpy"} <= told["versions"].keys()
    files = {file["name"]: file for file in told["files"]}
    assert {"layer": 0, "head": 2}.items() <= files["L00H02.png"].items()
    found = contents(tmp_path)
    del found["manifest.json"]
    expected = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in found.items()}
    assert {name: (file["bytes"], file["sha256"]) for name, file in files.items()} == expected


def test_export_prefixes_names_with_the_attention_kind(tmp_path):
    pair = load(t5(tmp_path / "model"))
    text, first = pair.prepare(TEXT, "It sat."), Selection(layers=(0,))
    save_export(pair, text, first, tmp_path / "out", heads=(1,), dpi=40)
    pictures = itertools.product(("encoder", "decoder", "cross"), ("L00", "L00H01", "overview"))
    expected = sorted(["manifest.json", *(f"{kind}-{name}.png" for kind, name in pictures)])
    assert names(tmp_path / "out") == expected
    told = manifest(tmp_path / "out")
    assert len(told["texts"]) == 2
    assert told["kinds"]["cross"] == {"queries": 1, "keys": 0}


def test_export_overwrites_only_with_force(export, tmp_path):
    (tmp_path / "L00H02.png").write_bytes(b"mine")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"holds L00H02.png that this would overwrite.*--force"):
        export()
    assert names(tmp_path) == ["L00H02.png", "notes.txt"]
    export(heads=(2,), force=True)
    assert (tmp_path / "L00H02.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "notes.txt").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        ("manifest.json", True), ("overview.png", True), (str(Name("png", 7, 11, "cross")), True),
        ("L07.png", True), (str(Name("png", 120, 11)), True), ("L06H11.png", False), ("L07H10.png", False),
        ("L07H11.svg", False), ("heads.npz", True), ("heads.csv", False), ("photo.png", False),
        ("L07H11.png.bak", False),
    ],
)  # fmt: skip
def test_export_plan_covers_names_before_loading_a_model(name, covered):
    assert ExportPlan(("png", "npz"), layers=(7, 120), heads=(11,)).covers(name) is covered


def test_concurrent_export_into_one_folder_is_refused(export, tmp_path):
    with claim_folder(tmp_path), pytest.raises(OutputError, match="another export is writing into"):
        export()
    assert names(tmp_path) == []
    with claim_folder(tmp_path):
        pass  # the claim has ended with its block


def test_interrupted_export_leaves_complete_files_and_resumes(export, model, text, tmp_path):
    def stop(what: str, done: int, total: int) -> None:
        assert what == "layer" or total == 1 + 1 + 2
        if (what, done) == ("file", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(stop):
        export(heads=(0, 1))
    assert names(tmp_path) == ["L00.png", "L00H00.png", "manifest.json", "overview.png"]
    assert "files" not in manifest(tmp_path)
    for changed in ({"text": model.prepare("Another text.")}, {"dpi": 41}):
        with pytest.raises(OutputError, match=r"L00.png and 3 more files that this would overwrite"):
            export(heads=(0, 1), **changed)
    refuse_existing(tmp_path, ExportPlan(("png",), (0,), (0, 1)))  # nothing is known of the text yet
    export(heads=(0, 1))
    export(tmp_path.with_name("whole"), heads=(0, 1))
    assert contents(tmp_path) == contents(tmp_path.with_name("whole"))
    with pytest.raises(OutputError, match="would overwrite"):
        export(heads=(0, 1))


PAUSED = """
import sys
from attnscope.cli import main
from attnscope.progress import listening

def pause(what, done, total):
    if (what, done) == ("file", 4):
        print("paused", file=sys.__stdout__, flush=True)
        sys.stdin.read()  # which ends when a signal comes

with listening(pause):
    main()
"""


@pytest.mark.subprocess
@pytest.mark.nightly
@pytest.mark.parametrize(("sent", "ended"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_stopped_export_is_completed_by_the_same_command(sent, ended, tmp_path):
    out, arguments = tmp_path / "out", ["export", TEXT, "--layer", "0-1", "--dpi", "60"]
    command = [sys.executable, "-m", "attnscope", *arguments, "-o", str(out)]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore Ctrl-C
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    paused = [sys.executable, "-c", PAUSED, *command[3:]]
    process = subprocess.Popen(paused, **streams, text=True, preexec_fn=heed)
    assert process.stdout.readline() == "paused\n"
    process.send_signal(sent)
    told = process.communicate()[1]
    assert process.returncode == ended, told
    if sent == signal.SIGINT:
        whole = f"{out} holds {len(names(out)) - 1} complete files; the same command resumes"
        assert told.startswith(f"attnscope: stopped; {whole}"), told
    other = subprocess.run([*command, "--scale", "row"], capture_output=True, text=True)
    assert (other.returncode, "would overwrite" in other.stderr) == (2, True)
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
    assert names(out) == sorted(["manifest.json", *(file["name"] for file in manifest(out)["files"])])


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"unfinished export": 3}', b"\xff", b"[" * 100_000])
def test_foreign_manifest_does_not_permit_overwriting(export, content, tmp_path):
    (tmp_path / "manifest.json").write_bytes(content)
    (tmp_path / "overview.png").write_bytes(b"mine")
    with pytest.raises(OutputError, match="would overwrite"):
        export()
    assert (tmp_path / "overview.png").read_bytes() == b"mine"


def test_export_replaces_links_without_following_them(export, tmp_path):
    outside = tmp_path / "outside.png"
    outside.write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    for name in ("overview.png", "mine.png"):
        (tmp_path / "out" / name).symlink_to(outside)
    export(tmp_path / "out", heads=(0,), force=True)
    assert outside.read_bytes() == b"mine"
    linked = [(tmp_path / "out" / name).is_symlink() for name in ("overview.png", "mine.png")]
    assert linked == [False, True]  # what is not written stays


def test_full_disk_leaves_complete_files_and_one_sentence(export, tmp_path, monkeypatch):
    real, room = os.replace, iter(range(2))

    def full(source, target):
        if next(room, None) is None:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        export()
    assert names(tmp_path) == ["manifest.json", "overview.png"]


def test_export_data_have_merged_words_and_hidden_tokens(model, text, tmp_path):
    save_export(model, text, Selection(layers=(0,), hide_special=True), tmp_path, formats=("npz",))
    found = read_weights(tmp_path / "heads.npz")
    keys = [place.text for place in found.kinds["encoder"][0][1].keys]
    assert keys == ["The", "cat", "sat", "on", "the", "mat", "."]
    assert any("special tokens hidden" in str(note) for note in found.notes)
    assert np.all(found.kinds["encoder"][0][1].values.sum(-1) <= 1 + 1e-5)
