"""Cached passes: every change of input runs the model again, and damaged entries are ignored."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from attnscope.cli import source as cli_source
from attnscope.cli.options import ModelOptions, SourceOptions, WeightedModelOptions
from attnscope.cli.source import PassSource
from attnscope.models import identity
from attnscope.storage import cache
from tests.cli.run import numbers
from tests.models.images import picture

TEXT = "The cat sat on the mat."
CHAT = json.dumps([{"role": "system", "content": "The dog sat."}, {"role": "user", "content": TEXT}])


@pytest.fixture
def looks(monkeypatch, tmp_path):
    """A cache of its own."""
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept" / "looks"


@pytest.fixture
def folder(tmp_path, causal_folder):
    """A model that a test may change."""
    return Path(shutil.copytree(causal_folder, tmp_path / "model"))


def came_from_there(ran) -> bool:
    assert ran.code == 0, ran.err
    assert "cached " not in ran.out  # the same command writes the same bytes
    return ran.err.startswith("cached ")


def test_second_command_reads_the_cached_pass(run, looks, folder):
    assert not came_from_there(run("show", TEXT, "-m", folder))
    assert came_from_there(run("stats", TEXT, "-m", folder))
    assert not came_from_there(run("show", TEXT, "-m", folder, "--no-cache"))
    assert not came_from_there(run("show", "Another text.", "-m", folder))
    assert len(list(looks.iterdir())) == 2


def test_note_on_a_cached_pass_is_dim_on_a_screen(run, looks, monkeypatch, folder):
    run("show", TEXT, "-m", folder)
    assert run("show", TEXT, "-m", folder).err.startswith("cached ")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run("show", TEXT, "-m", folder).err.startswith("\x1b[2mcached ")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("weighting", ["raw", "norm", "gradient"])
def test_two_texts_load_one_model_once(run, looks, monkeypatch, weighting):
    load = Mock(wraps=cli_source.load_model)
    monkeypatch.setattr(cli_source, "load_model", load)
    words = ("compare", TEXT, "--with-text", "The dog sat on the mat.", "--weighting", weighting)
    assert run(*words).code == 0
    assert load.call_count == 1
    assert run(*words).code == 0
    assert load.call_count == 1 + (weighting == "gradient")  # which keeps no pass


@pytest.mark.parametrize("look", [("--head", "L0H1"), ()])
def test_cached_command_has_the_same_title(run, looks, look):
    words = ("show", TEXT, *look, "--weighting", "norm-residual")
    first, second = run(*words), run(*words)
    assert came_from_there(second)
    for ran in (first, second):
        assert "own · weighted by norm-residual, no norm follows" in " ".join(ran.out.split())


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A text of the bundled encoder's whole length, 512 tokens, where the fused pass begins."""
    file = tmp_path_factory.mktemp("long") / "long.txt"
    file.write_text(TEXT * 100)
    return file


@pytest.fixture
def parts(tmp_path):
    """Where the parts of the text begin and end."""
    (tmp_path / "parts.json").write_text('{"first": [0, 7], "second": [8, 23]}')
    return tmp_path / "parts.json"


SAID, HEARD = "show TEXT --audio @tone -m @whisper", "show --audio @tone -m @whisper --generate 4"
LOOKS = {
    "-m @causal_folder": "show TEXT|show TEXT --head L0H1 --words|show TEXT --head L1H0 --weighting norm|"
    "stats TEXT|stats TEXT --by-position previous|stats TEXT --rows 1-3|stats TEXT --weighting zeroing|"
    "compare TEXT|compare TEXT --head 1|compare TEXT L0H0 L1H1|compare TEXT --with-text DOG|"
    "compare TEXT --with-text DOG --head L0H1|compare TEXT --with-text DOG --weighting norm|"
    "compare TEXT --with-model @chat_folder|check 'L0H0.entropy > 0' TEXT|find 'sat -> cat' TEXT|"
    "spans 'The cat sat. It slept.'|spans TEXT --parts @parts|spans TEXT --generate 3 --written|"
    "spans '[[cat: The cat sat.]] [[dog: It ran.]]' --parts marks|flow TEXT",
    "-f @long --truncate": "show --token 7|stats|stats --exact-kernel|compare --head 1",
    "-f @long --truncate --exact-kernel": "spans",
    "": f"{SAID} --head 'cross L0H1'|{HEARD}|spans TEXT --audio @tone -m @whisper --parts segment",
    "--audio @tone -m @hubert": "show|show --token '0.32 s'|stats --from-second 0.5",
    "--chat -m @chat_folder": "show TEXT --head L0H1|spans CHAT --parts role|"
    "spans CHAT --parts role --generate 3",
    "--image @drawing -m @llava": "find 'mat -> image' ABOUT|show ABOUT --image @drawing",
}


@pytest.fixture
def fill(request):
    """The words of a command, with texts, and the files that ``@fixtures`` make."""
    said = {"TEXT": TEXT, "DOG": "The dog sat on a mat.", "CHAT": CHAT, "ABOUT": "what is on the mat ?"}

    def filled(word):
        return said.get(word) or (request.getfixturevalue(word[1:]) if word[0] == "@" else word)

    return lambda asked: [*map(filled, shlex.split(asked))]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("asked", [f"{one} {more}" for more, of in LOOKS.items() for one in of.split("|")])
def test_every_command_caches_its_pass(run, monkeypatch, looks, fill, asked):
    given = [*fill(asked), "--json"]
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")
    live = numbers(run(*given))
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(looks.parent))
    first = numbers(run(*given))
    monkeypatch.setattr("attnscope.models.load", None)  # no model is loaded any more
    assert numbers(run(*given)) == first == live


def test_fused_pass_does_not_answer_for_kernel_rows(run, looks, long):
    run("stats", "-f", long, "--truncate")
    assert came_from_there(run("stats", "-f", long, "--truncate", "--top", "2"))
    assert not came_from_there(run("show", "--token", "7", "-f", long, "--truncate"))
    assert came_from_there(run("show", "--token", "7", "-f", long, "--truncate"))
    assert not came_from_there(run("stats", "--sort", "coverage90", "-f", long, "--truncate"))
    assert len(list(looks.iterdir())) == 2


def test_files_from_cached_pass_have_no_cache_note(run, monkeypatch, looks, folder, tmp_path):
    given, out = (TEXT, "-m", folder), tmp_path / "out"
    for _ in range(2):
        assert run("export", *given, "-o", out, "--format", "svg", "--head", "0", "--force").code == 0
        assert run("show", *given, "--head", "L1H0", "-o", out / "shown.svg").code == 0
        monkeypatch.setattr("attnscope.models.load", None)
    saved = [path.read_text() for path in out.glob("*.svg")]
    assert len(saved) == 6
    assert not any("cached " in text for text in saved)


@pytest.mark.parametrize("limit", ["storage.cache.ENTRY_BYTES", "models.trace_recording.ENTRY_BYTES"])
def test_large_pass_is_not_cached(run, monkeypatch, looks, long, limit):
    monkeypatch.setattr(f"attnscope.{limit}", 1 << 20)
    assert not came_from_there(run("show", "-f", long, "--truncate"))
    assert not looks.exists()


def change_byte(file):
    """Another byte in its place; size and time of the file stay."""
    found, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def replace_file(file):
    """Another file with the same size and time."""
    found, other = file.stat(), file.with_suffix(".new")
    other.write_bytes(bytes(found.st_size))
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(file)


FILES = {
    "a byte of the weights": lambda folder: change_byte(folder / "model.safetensors"),
    "a byte of the tokenizer": lambda folder: change_byte(folder / "tokenizer_config.json"),
    "a byte of large weights": lambda folder: change_byte(folder / "large.bin"),
    "the time of large weights": lambda folder: os.utime(folder / "large.bin", (1, 1)),
    "large weights that are others": lambda folder: replace_file(folder / "large.bin"),
    "an empty file more": lambda folder: (folder / "below" / "empty").touch(),
    "a file by another name": lambda folder: (folder / "tokenizer.json").rename(folder / "other.json"),
}
"""One after another."""

TEXTS = (f"{TEXT} ", TEXT.lower(), TEXT.replace(" ", "\u00a0"), TEXT.replace("a", "a\u0301"), "")
SOURCES = {"max_tokens": 5, "truncate": True, "generate": 3, "temperature": 0.5, "seed": 1, "chat": True}
SOURCES |= {"system": "Be short.", "from_second": 0.5, "to_second": 1.5}
MODELS = {"tokenizer": "own-causal", "device": "cpu", "device_map": "auto", "dtype": "bfloat16"}
MODELS |= {"revision": "main", "allow_pickle": True}
OTHERWISE = [
    *({"request": {"text": text}} for text in TEXTS),
    *({"request": {"second": text}} for text in ("", TEXT)),
    *({"request": {name: value}} for name, value in SOURCES.items()),
    *({"model": {name: value}} for name, value in MODELS.items()),
]


def other(source, **changes):
    """The same input with other options of its text or its model."""
    for name, each in changes.items():
        value = replace(getattr(source, name), **each) if isinstance(each, dict) else each
        source = replace(source, **{name: value})
    return source


@pytest.fixture
def source(monkeypatch, looks, folder):
    """What is looked at; a large file in the model's folder counts as settled at once."""
    monkeypatch.setattr(identity, "SETTLED", 0)
    (folder / "below").mkdir()
    (folder / "large.bin").write_bytes(bytes(identity.HASHED_BYTES + 1))
    return PassSource.from_options(SourceOptions(text=TEXT), ModelOptions(model=str(folder)), TEXT)


def test_cache_key_depends_on_every_model_file(source, folder):
    before = source.key
    for name, change in FILES.items():
        change(folder)
        assert source.key not in (before, None), name
        before = source.key


def test_cache_key_depends_on_every_input_option(source):
    assert other(source, no_cache=True, line=2).key == source.key is not None
    same = [changes for changes in OTHERWISE if other(source, **changes).key == source.key]
    assert same == []


@pytest.mark.parametrize("name", ["attnscope", "torch", "transformers", "tokenizers"])
def test_cache_key_depends_on_package_versions(monkeypatch, source, name):
    monkeypatch.setattr(identity, "version", lambda name: "1")
    before = source.key
    if name == "attnscope":
        monkeypatch.setattr(identity, "__version__", "9.9")
    monkeypatch.setattr(identity, "version", lambda each: "9.9" if each == name else "1")
    assert source.key != before


def test_cache_key_depends_on_chat_date_and_visible_devices(monkeypatch, source):
    before, chat = source.key, other(source, request={"chat": True})
    written = chat.key
    monkeypatch.setattr(cli_source, "date", type("Day", (), {"today": lambda: "1999-12-31"}))
    assert chat.key not in (written, None)
    assert source.key == before
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert source.key != before


@pytest.mark.parametrize("field", ["image", "second image", "video", "audio", "inputs"])
def test_cache_key_depends_on_input_file_content(source, tmp_path, field):
    file, first = picture(tmp_path / "a.png"), picture(tmp_path / "first.png")
    pictures = {"image": [file], "second image": [first, file], "video": [file]}.get(field)
    fields = {field: file} if pictures is None else {"pictures": pictures, "video": field == "video"}
    told = other(source, request=fields)
    before = told.key
    change_byte(file)
    assert told.key not in (before, None)


def test_cache_key_depends_on_image_names_and_order(source, tmp_path):
    one, two = picture(tmp_path / "a.png"), tmp_path / "b.png"
    shutil.copy(one, two)
    asked = [[one], [two], [one, one], [one, two], [two, one]]
    keys = [other(source, request={"pictures": each}).key for each in asked]
    assert len({*keys, source.key, None}) == 7


def test_cache_key_depends_on_weighting(source):
    weighted = WeightedModelOptions(model=source.model.model)
    models = [
        replace(weighted, weighting=weighting) for weighting in ("raw", "norm", "norm-residual", "zeroing")
    ]
    assert len({None, source.key, *(replace(source, model=each).key for each in models)}) == 6


def test_cache_key_depends_on_model_path_and_link_target(source, folder, tmp_path):
    elsewhere, link = shutil.copytree(folder, tmp_path / "elsewhere"), tmp_path / "link"
    keys = {None, source.key, other(source, model={"model": str(elsewhere)}).key}
    for place in (folder, elsewhere):
        link.symlink_to(place)
        keys.add(other(source, model={"model": str(link)}).key)
        link.unlink()
    assert len(keys) == 5


def test_unidentifiable_model_has_no_cache_key(source):
    named = (ModelOptions(model=name) for name in ("mine.py:make", "a.b:make", "nobody/this", "/no/folder"))
    models = [*named, ModelOptions(trust_remote_code=True), WeightedModelOptions(weighting="gradient")]
    assert [model for model in models if replace(source, model=model).key is not None] == []


def test_incomplete_model_folder_has_no_cache_key(monkeypatch, source, folder):
    with monkeypatch.context() as patched:  # large weights were written a moment ago
        patched.setattr(identity, "SETTLED", 1000)
        assert source.key is None
    assert source.key is not None
    (folder / "adapter_config.json").write_text("{}")  # whose base lies elsewhere
    assert source.key is None


def test_folder_with_too_many_files_has_no_cache_key(monkeypatch, source, folder):
    monkeypatch.setattr(identity, "MOST_MODEL_FILES", sum(path.is_file() for path in folder.rglob("*")))
    assert source.key is not None
    (folder / "added.json").write_text("{}")
    assert source.key is None


def test_cache_off_stores_nothing(run, monkeypatch, looks, folder):
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")
    run("show", TEXT, "-m", folder)
    assert not came_from_there(run("show", TEXT, "-m", folder))
    assert not looks.exists()
    assert "nothing is cached" in run("cache").out


def test_ablate_runs_the_model_despite_a_cached_pass(run, looks, folder):
    run("show", TEXT, "-m", "own-causal")
    assert not came_from_there(run("ablate", TEXT, "-m", "own-causal", "--head", "L0H1"))


@pytest.fixture
def entry(run, looks):
    """The one entry of a look at the bundled encoder."""
    run("show", TEXT)
    (path,) = looks.iterdir()
    return path


DAMAGES = {  # tests/storage cuts files anywhere, and flips any bit
    "half": lambda content: content[: len(content) // 2],
    "its last bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


def test_damaged_cache_entry_is_replaced(run, looks, entry):
    for name, damage in DAMAGES.items():
        (kept,) = looks.iterdir()
        kept.write_bytes(damage(kept.read_bytes()))
        assert not came_from_there(run("show", TEXT)), name
    assert came_from_there(run("show", TEXT))
    assert len(list(looks.iterdir())) == 1


def test_cache_entry_with_wrong_key_or_content_is_removed(looks, entry):
    assert cache.find_pass(entry.stem.partition("-")[0]) is not None
    for key, content in (("0" * 40, entry.read_bytes()), ("1" * 40, b"no trace")):
        forged = looks / f"{key}-{cache._digest(content)}.trace"
        forged.write_bytes(content)
        forged.chmod(0o600)
        assert cache.find_pass(key) is None
        assert not forged.exists()


@pytest.mark.sweep(3)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "open to others"])
def test_cache_entry_not_private_to_the_user_is_ignored(run, looks, entry, tmp_path, kind):
    moved = tmp_path / "moved.trace"
    if kind == "open to others":
        entry.chmod(0o644)
    else:
        entry.rename(moved)
        if kind == "link":
            entry.symlink_to(moved)
        elif kind == "pipe":
            os.mkfifo(entry)
        else:
            entry.mkdir()
    assert not came_from_there(run("show", TEXT))


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_cache_folder_not_private_to_the_user_is_ignored(run, looks, entry):
    assert looks.stat().st_mode & 0o777 == 0o700
    assert entry.stat().st_mode & 0o777 == 0o600
    looks.chmod(0o777)
    for _ in range(2):
        assert not came_from_there(run("show", TEXT))


@pytest.mark.parametrize("place", ["a file", "/proc/nowhere/at/all"])
def test_unwritable_cache_folder_disables_cache(run, monkeypatch, tmp_path, folder, place):
    file = tmp_path / "a file"
    file.write_text("")
    monkeypatch.setenv("ATTNSCOPE_CACHE", place.replace("a file", str(file)))
    for _ in range(2):
        assert not came_from_there(run("show", TEXT, "-m", folder))
    assert file.read_text() == ""
    assert run("cache", "--clear").code == 0


def test_full_disk_disables_cache_silently(run, monkeypatch, looks, folder):
    monkeypatch.setattr(cache, "write_whole", Mock(side_effect=OSError(28, "No space left on device")))
    ran = run("show", TEXT, "-m", folder)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("limit", ["CACHE_BYTES", "MOST_ENTRIES"])
def test_oldest_cache_entries_are_removed_first(monkeypatch, run, looks, entry, limit):
    trace = cache.find_pass(entry.stem.partition("-")[0])
    monkeypatch.setattr(cache, limit, 3 if limit == "MOST_ENTRIES" else int(3.5 * entry.stat().st_size))
    os.utime(entry, (1, 1))
    for number in range(5):
        cache.store_pass(f"{number:040}", trace)
        (made,) = looks.glob(f"{number:040}-*")
        os.utime(made, (2 + number, 2 + number))
    assert {path.name[:40] for path in looks.iterdir()} == {f"{number:040}" for number in (2, 3, 4)}


@pytest.mark.nightly
@pytest.mark.subprocess
def test_two_processes_share_the_cache_safely(run, looks, folder):
    given = [sys.executable, "-m", "attnscope", "show", TEXT, "-m", str(folder), "--head", "L0H0"]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
        while other.poll() is None:  # this process looks, and forgets, as long as the other one works
            assert run("show", TEXT, "-m", folder, "--head", "L0H0").code == 0
            for path in looks.iterdir():
                path.unlink(missing_ok=True)
        assert (other.stderr.read(), other.returncode) == (b"", 0)
    run("show", TEXT, "-m", folder)
    assert came_from_there(run("show", TEXT, "-m", folder))


def test_cache_lists_and_clears_passes_without_control_codes(run, looks, folder):
    run("show", TEXT, "-m", folder)
    run("show", "[bold]\x1b[2J\x1b]0;owned\x07")
    listed = run("cache").out
    assert "2 passes, " in listed
    assert "The cat sat on" in listed
    assert "own " in listed
    assert "[bold]" in listed
    assert "\x1b[2J" not in listed
    assert run("cache", "--clear").out == f"removed 2 passes from {looks}\n"
    assert run("cache").out == f"0 passes, 0.0 MB in {looks}\n"
    assert not came_from_there(run("show", TEXT, "-m", folder))


def test_foreign_files_in_cache_folder_are_never_removed(monkeypatch, run, looks, folder):
    run("show", TEXT, "-m", folder)
    (looks / "letters.txt").write_text("mine")
    (looks / "mine.trace").write_text("mine")
    monkeypatch.setattr(cache, "CACHE_BYTES", 0)
    run("show", "Another text.", "-m", folder)
    assert run("cache", "--clear").code == 0
    assert sorted(path.name for path in looks.iterdir()) == ["letters.txt", "mine.trace"]


def test_cache_key_of_hub_model_follows_its_snapshot(monkeypatch, source, folder, tmp_path):
    hub, keys = tmp_path / "models--someone--gpt", {None}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (hub / "refs").mkdir(parents=True)
    for commit in ("one", "two"):
        shutil.copytree(folder, hub / "snapshots" / commit)
        (hub / "refs" / "main").write_text(commit)
        named = other(source, model={"model": "someone/gpt"}).key
        assert named == other(source, model={"model": "someone/gpt"}).key
        keys.add(named)
    assert len(keys) == 3


@pytest.mark.parametrize("asked", [SAID, HEARD], ids=["said", "heard"])
def test_sound_page_is_the_same_from_a_trace(run, tmp_path, fill, asked):
    kept, pages = tmp_path / "a.trace", (tmp_path / "live.html", tmp_path / "there.html")
    run(*fill(asked), "--save-trace", kept)
    for source, page in zip(([*fill(asked), "--no-cache"], ["show", "--from", kept]), pages, strict=True):
        assert run(*source, "-o", page).code == 0
    live, there = (page.read_text().splitlines() for page in pages)
    assert '"heard":true' in "".join(live).replace(": ", ":")
    same = [line for line in there if "a trace of" not in line]
    assert same == [line for line in live if line in same]
