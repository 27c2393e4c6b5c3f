"""Untrusted text in every kind of file and every name: no output has it unchanged."""

import json
import re
import shutil

import pytest
import transformers
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tokenizers import processors

from attnscope.storage.arrays import read_weights, save_weights
from tests.models.folders import gpt2
from tests.test_text import HOSTILE, steering

NAME = HOSTILE.replace("\udcff", "").replace("/", "")


def planted(form: str, tmp_path):
    """A file of weights as it is saved here, hostile in its title, its notes and its tokens."""
    places = [[NAME, at, at + 1, False, None, None, NAME] for at in range(2)]
    content = {
        "weights": {"encoder.00": [[[0.5, 0.5], [0.5, 0.5]]]},
        "format": 1,
        "title": NAME,
        "notes": [NAME],
        "axes": [dict.fromkeys(("queries", "keys"), places)],
        "layers": [{"kind": "encoder", "layer": 0, "array": "encoder.00", "axes": 0}],
    }
    first = tmp_path / "first.json"
    first.write_text(json.dumps(content), "utf-8")
    saved = read_weights(first)
    save_weights(
        saved.kinds, tmp_path / f"a.{form}", title=saved.title.raw, notes=tuple(n.raw for n in saved.notes)
    )
    return tmp_path / f"a.{form}"


@pytest.mark.sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize("form", ["npz", "safetensors", "json"])
def test_hostile_weights_file_has_no_raw_codes_in_outputs(form, tmp_path, run, monkeypatch):
    path = planted(form, tmp_path)
    show = ("show", "--from", path, "--head", "L0H0")
    assert run("show", "--from", path, "-o", tmp_path / "o.html").code == 0
    page = (tmp_path / "o.html").read_text("utf-8")
    assert "<script>alert(1)" not in page
    outputs = {"terminal": run(*show).out, "json": run(*show, "--json").out, "page": page}
    if form == "npz":  # a picture is drawn of what was read, whatever it was read from
        for suffix in ("svg", "pdf", "png"):
            assert run(*show, "-o", tmp_path / f"o.{suffix}").code == 0
        outputs["svg"] = (tmp_path / "o.svg").read_text("utf-8")
        assert b"owned" not in (tmp_path / "o.pdf").read_bytes().partition(b"/Info")[2]
    for name, text in outputs.items():
        assert not steering(text), name
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run(*show).out
    assert "\x1b]" not in coloured
    assert not steering(re.sub(r"\x1b\[[\d;]*m", "", coloured))


@pytest.mark.parametrize("asked", ["show --from {}.npz", "stats -f {}", "show a -m {}"])
def test_missing_names_are_cleaned_in_errors(run, asked):
    result = run(*(word.format(NAME) for word in asked.split()))
    assert result.code == 2
    assert not steering(result.err)


@pytest.fixture
def corpus(tmp_path):
    """Texts that are hostile themselves, in lines that are broken in hostile ways, in a file named so."""
    texts = (json.dumps({"text": f"The cat sat. {NAME}"}), json.dumps({NAME: 1}))
    lines = (*texts, "[" * 100_000, f"{NAME} no JSON")
    path = tmp_path / f"{NAME[:20]}.jsonl"
    path.write_text("\n".join(line.replace("\n", " ") for line in lines), "utf-8")
    return path


@pytest.mark.parametrize("form", [[], ["--csv"], ["--json"], ["--sort", "entropy"]], ids=str)
def test_hostile_corpus_has_no_raw_codes_in_outputs(form, corpus, tmp_path, run):
    asked = ("stats", "--texts", corpus, "--truncate", *form)
    ran = run(*asked, "--checkpoint", tmp_path / "sums.json")
    assert ran.code == 0, ran.err
    assert ran.err.count("skipped") == 3
    assert not steering(ran.out + ran.err)
    strict = run(*asked, "--strict")
    assert strict.code == 2
    assert not steering(strict.out + strict.err)


@pytest.mark.sweep(3)
@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "jpeg", "tiff", "webp"])
def test_hostile_image_metadata_has_no_raw_codes_in_outputs(suffix, tmp_path, run, vit):
    path = tmp_path / f"{NAME[:20]}.{suffix}"
    picture, said, exif = Image.new("RGB", (32, 32), "red"), PngInfo(), Image.Exif()
    latin = NAME.encode("utf-8", "replace").decode("latin-1")
    for tag in (270, 305, 315, 33432):  # description, software, artist, copyright
        exif[tag] = latin
    said.add_text("Comment", latin)
    picture.save(path, exif=exif, **({"pnginfo": said} if suffix == "png" else {}))
    looks = [[], ["--json"], ["--head", "L0H0"], ["-o", tmp_path / "o.html"]]
    if suffix == "png":  # a picture is drawn of what was read, whatever it was read from
        looks += [["--head", "L0H0", "-o", tmp_path / name] for name in ("o.svg", "o.pdf")]
    for look in looks:
        ran = run("show", "-m", vit, "--image", path, *look)
        assert ran.code == 0, ran.err
        assert not steering(ran.out + ran.err)
    for file in tmp_path.glob("o.*"):
        assert b"owned" not in file.read_bytes().replace(b"owned\\", b"")
    path.write_text(latin)
    ran = run("show", "-m", vit, "--image", path)
    assert ran.code == 2
    assert not steering(ran.err)


def test_hostile_folder_name_is_cleaned_when_saving(tmp_path, run, monkeypatch):
    folder = tmp_path / "a\x1b[31m\u202e"
    folder.mkdir()
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(folder))
    for command in (
        ("show", "a cat", "--head", "L0H0", "-o", folder / "a.svg"),
        ("export", "a\u202ecat", "-o", folder / "all", "--layer", "0", "--head", "0", "--format", "npz"),
        ("cache",),
        ("cache", "--clear"),
    ):
        ran = run(*command)
        assert ran.code == 0
        assert not steering(ran.out + ran.err)
    assert not steering((folder / "all" / "manifest.json").read_text("utf-8"))


EVIL = (
    "$\\frac{1}{0}$ \\unknown{"  # a formula
    "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e"  # what a terminal obeys
    "[bold red][/][link=http://x]"  # markup
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>"  # code in a page
    "{0} %s %(x)d {{"  # a format
)
VIEWS = "show|show --plain|show --head L1H1|show --token 0|show --json|stats|stats --csv|stats --json|info"


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A model whose name, and the special token before every text, are hostile."""
    made = gpt2(tmp_path_factory.mktemp("made"), vocab_size=500)
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    tokenizer.add_special_tokens({"cls_token": EVIL})
    start = {"id": "S", "ids": [tokenizer.cls_token_id], "tokens": [EVIL]}
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(["S", "$A"], None, [start])
    folder = tmp_path_factory.mktemp("evil") / EVIL.replace("/", "|")
    shutil.copytree(made, folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS.split("|"))
def test_hostile_names_and_tokens_are_cleaned_in_terminal(run, evil, view):
    ran = run(*view.split(), "-m", evil, "The cat sat.")
    assert ran.code == 0, ran.err
    assert not steering(ran.out + ran.err)
