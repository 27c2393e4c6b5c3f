"""The last looks of what is no plain text alone: sounds, chats, two texts, two models."""

import json

import numpy as np
import pytest
import transformers
from PIL import Image

from tests.cli.test_cache import answers
from tests.models import folders, speech
from tests.models.vision_language import vision_language

TEXT = "The cat sat on the mat."
CHAT = json.dumps([{"role": "system", "content": "The dog sat."}, {"role": "user", "content": TEXT}])
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
ABOUT = "what is on the mat ?"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Models of every sort, and files for them to read."""
    place = tmp_path_factory.mktemp("sources")
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(place / "a.png")
    talker = folders.gpt2(place / "talker")
    tokenizer = transformers.AutoTokenizer.from_pretrained(talker)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(talker)
    return {
        "tone": speech.sound(place / "tone.wav"),
        "picture": place / "a.png",
        "whisper": speech.whisper(place / "whisper"),
        "hubert": speech.encoder(place / "hubert", "hubert"),
        "llava": vision_language(place / "llava", "llava"),
        "gpt2": folders.gpt2(place / "gpt2"),
        "talker": talker,
    }


LOOKS = {
    "a sound": ["show", "--audio", "<tone>", "-m", "<hubert>"],
    "a moment": ["show", "--audio", "<tone>", "-m", "<hubert>", "--token", "0.32 s"],
    "a part of a sound": ["stats", "--audio", "<tone>", "--from-second", "0.5", "-m", "<hubert>"],
    "what is said": ["show", TEXT, "--audio", "<tone>", "-m", "<whisper>", "--head", "cross L0H1"],
    "what is heard": ["show", "--audio", "<tone>", "-m", "<whisper>", "--generate", "4"],
    "words and their sound": ["spans", TEXT, "--audio", "<tone>", "-m", "<whisper>", "--by", "segment"],
    "a chat": ["show", TEXT, "--chat", "-m", "<talker>", "--head", "L0H1"],
    "roles": ["spans", CHAT, "--chat", "--by", "role", "-m", "<talker>"],
    "roles and an answer": ["spans", CHAT, "--chat", "--by", "role", "-m", "<talker>", "--generate", "3"],
    "what is written": ["spans", TEXT, "-m", "<gpt2>", "--generate", "3", "--written"],
    "marks": ["spans", "[[cat: The cat sat.]] [[dog: It ran.]]", "--by", "marks", "-m", "<gpt2>"],
    "two texts": ["compare", TEXT, "--with-text", "The dog sat on a mat.", "-m", "<gpt2>"],
    "a head on two texts": ["compare", TEXT, "--with-text", "The dog sat.", "-m", "<gpt2>", "--head", "L0H1"],
    "two models": ["compare", TEXT, "-m", "<gpt2>", "--with-model", "<talker>"],
    "two weighed": ["compare", TEXT, "-m", "<gpt2>", "--with-text", "The dog sat.", "--weigh", "norm"],
    "an image": ["find", "mat -> image", ABOUT, "--image", "<picture>", "-m", "<llava>"],
    "two images": ["show", ABOUT, "--image", "<picture>", "--image", "<picture>", "-m", "<llava>"],
}  # fmt: skip


def fill(asked, sources):
    return [sources[word[1:-1]] if word[:1] == "<" and word[1:-1] in sources else word for word in asked]


@pytest.mark.parametrize("name", LOOKS)
def test_the_second_look_is_answered_without_the_model(run, monkeypatch, tmp_path, sources, name):
    given = [*fill(LOOKS[name], sources), "--json"]
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")
    live = answers(run(*given))
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path))
    first = answers(run(*given))
    monkeypatch.setattr("attnscope.models.load", None)  # no model is loaded any more
    assert answers(run(*given)) == first == live


@pytest.mark.parametrize("name", ["what is said", "what is heard"])
def test_the_page_of_a_sound_is_the_same_from_its_trace(run, tmp_path, sources, name):
    given = [word for word in fill(LOOKS[name], sources) if word not in ("--head", "cross L0H1")]
    live, kept, there = (tmp_path / file for file in ("live.html", "a.trace", "there.html"))
    assert run(*given, "-o", live, "--no-cache").code == 0
    assert run(*given, "--keep", kept).code == 0
    assert run("show", "--from", kept, "-o", there).code == 0
    assert '"heard":true' in live.read_text().replace(": ", ":")
    line = [part for part in there.read_text().splitlines() if "a trace of" not in part]
    assert line == [part for part in live.read_text().splitlines() if part in line]


@pytest.mark.parametrize("more", [[], ["--generate", "3"]], ids=["read", "written"])
def test_a_chat_is_cut_by_roles_from_its_trace(run, tmp_path, sources, more):
    file = tmp_path / "chat.trace"
    given = ["spans", CHAT, "--chat", "--by", "role", "-m", sources["talker"], *more]
    live = run(*given, "--json", "--keep", file)
    there = json.loads(run("spans", "--from", file, "--by", "role", "--json").out)
    expected = json.loads(live.out)
    assert [part["name"] for part in there["parts"]][:3] == ["template", "system", "template#2"]
    assert (there["parts"], there["heads"]) == (expected["parts"], expected["heads"])


def test_parts_of_a_file_are_cut_out_of_a_trace(run, tmp_path):
    (tmp_path / "parts.json").write_text('{"first": [0, 7], "second": [8, 23]}')
    live = run("spans", TEXT, "--by", tmp_path / "parts.json", "--json", "--keep", tmp_path / "a.trace")
    there = run("spans", "--from", tmp_path / "a.trace", "--by", tmp_path / "parts.json", "--json")
    assert live.code == there.code == 0
    assert json.loads(there.out)["heads"] == json.loads(live.out)["heads"]
