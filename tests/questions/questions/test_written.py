"""What each written token looks at, roles of a chat, parts from a file, and long texts."""

import json
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers

from attnscope.attention import Token
from attnscope.capture import Keep
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.models.request import read_messages
from attnscope.questions.parts import Span, cut_text, read_parts, spans_of, spans_of_roles
from attnscope.questions.spans import span_maps, written_looks
from attnscope.storage.trace.layout import Message
from tests.cli.run import runner
from tests.models import folders
from tests.models.images import picture
from tests.models.vision_folders import vision_language

TEXT = "The king was old. The king said that he would"


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    return runner(monkeypatch, capsys)


def test_shares_and_the_lookback_ratio_equal_numpy_on_the_rows_of_every_head():
    model = load("own-causal")
    prompt = model.prepare(TEXT)
    prepared = model.generate(prompt, 8)
    start, size = prepared.written, len(prepared.tokens)
    assert size - start == 8
    cut = spans_of(prepared.tokens[:start], TEXT, cut_text(TEXT, "sentence"))
    seen = written_looks(model, prepared, (*cut, Span("written", start, size)))
    keep = Keep(lambda site: range(4))
    model.run(prepared, [keep])
    rows = np.concatenate([kept.weights[0].double().numpy() for kept in keep.maps])  # [head, query, key]
    for number, part in enumerate((*cut, Span("written", start, size))):
        expected = rows[:, start:, part.start : part.stop].sum(-1)
        np.testing.assert_allclose(seen.shares[:, :, number], expected, atol=1e-6)
    for head, own in zip(seen.heads, rows, strict=True):
        ratios = []
        for row in range(start, size):
            old, new = own[row, :start].mean(), own[row, start : row + 1].mean()
            ratios.append(old / (old + new))
        assert seen.lookback[head] == pytest.approx(np.mean(ratios), abs=1e-6)


def test_nothing_that_was_written_is_said():
    model = load("own-causal")
    prepared = model.prepare(TEXT)
    cut = spans_of(prepared.tokens, TEXT, cut_text(TEXT, "sentence"))
    with pytest.raises(InputError, match="wrote nothing"):
        written_looks(model, prepared, cut)


MESSAGES = [
    Message("system", "You are a cat."),
    Message("user", "Who slept?"),
    Message("tool", "the  mat"),
    Message("assistant", "A cat."),
    Message("user", "Who slept?"),
]
SAID = [asdict(message) for message in MESSAGES]


def test_messages_are_parts_by_their_roles():
    chat = "<s> You are a cat . <u> Who slept ? <t> the mat <a> A cat . <u> Who slept ? </s>"
    words = chat.split()
    tokens = [Token(word, number, word.startswith("<")) for number, word in enumerate(words)]
    spans = spans_of_roles(tokens, MESSAGES)
    names = [
        (span.name, " ".join(words[span.start : span.stop])) for span in spans if "template" not in span.name
    ]
    assert names == [
        ("system", "You are a cat ."),
        ("user", "Who slept ?"),
        ("tool", "the mat"),
        ("assistant", "A cat ."),
        ("user#2", "Who slept ?"),
    ]
    assert (spans[0].start, spans[-1].stop) == (0, len(tokens))
    with pytest.raises(InputError, match="the user's message cannot be found"):
        spans_of_roles(tokens[:8], MESSAGES)


def test_a_chat_is_one_message_or_all_of_them_as_json():
    assert read_messages("Hello") == [{"role": "user", "content": "Hello"}]
    assert read_messages(json.dumps(SAID)) == SAID
    assert read_messages("Hello", "Be kind.")[0] == {"role": "system", "content": "Be kind."}
    assert read_messages("[1] is a note [2]")[0]["content"] == "[1] is a note [2]"
    with pytest.raises(InputError, match="each with a role and a content"):
        read_messages('[{"role": "user"}]')


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat")
    folder = folders.gpt2(path, n_positions=256)
    config = json.loads((path / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_roles_come_from_the_chat_template(run, chat):
    ran = run("spans", json.dumps(SAID), "-m", chat, "--chat", "--by", "role", "--generate", "3", "--json")
    parts = [part["name"] for part in json.loads(ran.out)["parts"] if "template" not in part["name"]]
    assert parts[:5] == ["system", "user", "tool", "assistant", "user#2"]
    ran = run(
        "spans",
        "Who slept?",
        "-m",
        chat,
        "--chat",
        "--system",
        "You are a cat.",
        "--by",
        "role",
        "--pair",
        "user -> system",
    )
    assert "user -> system" in ran.out
    assert run("spans", "Who?", "-m", chat, "--by", "role").code == 2
    assert run("spans", "Who?", "-m", chat, "--chat").code == 2


def test_written_tokens_are_drawn_and_printed(run, monkeypatch):
    asked = ("spans", TEXT, "-m", "own-causal", "--generate", "6", "--written")
    for width in (50, 80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = run(*asked).out.splitlines()
        assert max(map(len, lines)) <= width
    assert any(line.startswith("A [CLS]") for line in lines)
    assert "lookback ratio" in "\n".join(lines)
    numbers = json.loads(run(*asked, "--json").out)
    assert numbers["parts"][-1] == "written"
    for head in numbers["heads"]:
        assert np.array(head["shares"]).sum(-1) == pytest.approx(np.ones(6), abs=1e-5)
        assert 0 < head["lookback"] < 1
    assert run(*asked[:4], "--written").code == 2


def test_a_file_names_parts_by_their_characters(run, tmp_path):
    file = tmp_path / "parts.json"
    file.write_text(json.dumps({"fact": [0, 16], "rest of it": [18, 45]}))
    numbers = json.loads(run("spans", TEXT, "-m", "own-causal", "--by", file, "--json").out)
    assert [part["name"] for part in numbers["parts"]] == ["[CLS]", "fact", "rest 2", "rest of it", "[SEP]"]
    assert read_parts('{"b": [5, 9], "a": [9, 12]}') == (("", 0), ("b", 5), ("a", 9), ("", 12))
    for wrong in (
        "no",
        "[]",
        "{}",
        '{"a": [5, 3]}',
        '{"a": [0, 5], "b": [3, 9]}',
        '{"a": 1}',
        '{"a": ["x", "y"]}',
    ):
        with pytest.raises(InputError, match="a file of parts is JSON"):
            read_parts(wrong)


@pytest.mark.slow
def test_parts_of_a_long_text_equal_brute_force(tmp_path, request):
    size = 32_768 if request.config.getoption("whole") else 8_192
    folder = folders.gpt2(tmp_path, n_positions=size, n_layer=1, n_head=1, n_embd=8)
    model = load(folder)
    prepared = model.prepare(
        "The cat sat on the mat because it was tired. " * (size // 5), max_tokens=size, truncate=True
    )
    assert len(prepared.tokens) == size
    random = np.random.default_rng(0)
    edges = [0, 1, 2, *sorted(random.choice(np.arange(3, size), 9, replace=False).tolist()), size]
    cut = [Span(str(number), *each) for number, each in enumerate(pairwise(edges))]
    seen = span_maps(model, prepared, cut)
    assert "1 of 1 calls ran as a fused pass" in seen.notes[0]
    eager = transformers.AutoModel.from_pretrained(folder).eval()
    block = eager.h[0]
    with torch.inference_mode():
        states = block.ln_1(eager.wte(prepared.inputs["input_ids"]) + eager.wpe(torch.arange(size)))
        query, key, _ = block.attn.c_attn(states)[0].double().split(8, -1)
    rows = np.zeros((len(cut), len(cut)))
    even = np.zeros_like(rows)
    for number, span in enumerate(cut):
        for start in range(span.start, span.stop, 1024):
            stop = min(start + 1024, span.stop)
            scores = query[start:stop] @ key.T / 8**0.5
            ahead = torch.arange(size) > torch.arange(start, stop)[:, None]
            weights = scores.masked_fill(ahead, float("-inf")).softmax(-1).numpy()
            share = (~ahead).double().numpy() / np.arange(start + 1, stop + 1)[:, None]
            rows[number] += np.add.reduceat(weights, edges[:-1], axis=-1).sum(0) / (span.stop - span.start)
            even[number] += np.add.reduceat(share, edges[:-1], axis=-1).sum(0) / (span.stop - span.start)
    np.testing.assert_allclose(seen.weights[0], rows, atol=1e-6)
    np.testing.assert_allclose(seen.baseline[0], even, atol=1e-6)
    np.testing.assert_allclose(seen.weights.sum(-1), 1, atol=1e-6)


def test_an_image_and_its_text_are_parts(run, tmp_path):
    folder = vision_language(tmp_path / "llava", "llava")
    image = picture(tmp_path / "picture.png")
    asked = ("spans", "--image", image, "what is on the mat ?", "-m", folder, "--by", "modality")
    numbers = json.loads(run(*asked, "--json").out)
    names = [part["name"] for part in numbers["parts"]]
    assert names.count("image") == 1
    assert "text" in names
    parts = {part["name"]: (part["start"], part["stop"]) for part in numbers["parts"]}
    for head in numbers["heads"]:
        assert np.array(head["weights"]).sum(-1) == pytest.approx(np.ones(len(names)), abs=1e-5)
    assert parts["image"][1] - parts["image"][0] == 16  # 4 × 4 patches
    assert "text -> image" in run(*asked, "--pair", "text -> image").out
    assert run(*asked[:5], "-m", folder).code == 2


def test_the_tiles_of_a_picture_are_one_part_and_two_pictures_are_two(run, tmp_path):
    folder = vision_language(tmp_path / "idefics3", "idefics3")
    image = picture(tmp_path / "picture.png")
    given = ("what is on the mat ?", "--image", image, "--image", image, "-m", folder)
    parts = json.loads(run("spans", *given, "--by", "modality", "--json").out)["parts"]
    names = [part["name"] for part in parts if not part["name"].startswith("<")]
    assert names == ["image 1", "image 2", "text"]


def test_a_text_alone_has_no_modalities_to_cut_by(run):
    assert run("spans", "The cat sat.", "--by", "modality").code == 2
    assert "the input is text only" in run("spans", "The cat sat.", "--by", "modality").err
