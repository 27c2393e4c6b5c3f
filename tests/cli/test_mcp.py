"""An agent asks, by the protocol's own client, and reads nothing outside of the folder."""

import asyncio
import base64
import shutil
import sys
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

import attnscope
from attnscope.cli.commands.mcp import make_server

mcp = pytest.importorskip("mcp")

TEXT = "The cat sat on the mat because it was tired."
BUNDLED = Path(attnscope.__file__).parent / "pretrained" / "own"


def ask(server, *questions):
    """The answers of a server to some calls of its tools."""

    async def talk():
        async with mcp.Client(server) as client:
            return [await client.call_tool(tool, words) for tool, words in questions]

    return asyncio.run(talk())


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_server(tmp_path)


def test_a_head_is_a_picture_and_text(server):
    (answer,) = ask(server, ("show", {"text": TEXT, "head": "L2H1"}))
    text, picture = answer.content
    assert text.text == repr(attnscope.load("own").read(TEXT).head("L2H1"))
    assert Image.open(BytesIO(base64.b64decode(picture.data))).width > 300


@pytest.mark.parametrize(
    ("tool", "words", "said"),
    [
        ("load", {}, "own has "),
        ("show", {"text": TEXT}, "L0H7  looks at the next token"),
        ("show", {"text": TEXT, "token": "cat"}, "cat"),
        ("stats", {"text": TEXT, "top": 2}, "2 of 32 heads"),
        ("find", {"text": TEXT, "question": "it -> cat"}, "share  baseline  rank"),
        ("compare", {"text": TEXT}, "nats apart"),
        ("compare", {"text": "The cat sat.", "other": "The dog sat."}, "changes by"),
        ("cut", {"text": "The cat sat on the", "edge": "on -> cat", "target": "mat"}, "log-probability"),
    ],
)
def test_each_question_is_answered_as_in_the_terminal(server, tool, words, said):
    (answer,) = ask(server, (tool, words))
    assert not answer.is_error
    assert said in answer.content[0].text


def test_a_model_and_a_trace_in_the_folder_are_read(server, tmp_path):
    attnscope.load("own").read(TEXT).save(tmp_path / "cat.trace")
    shutil.copytree(BUNDLED, tmp_path / "mine")
    answers = ask(server, ("stats", {"text": "cat.trace"}), ("stats", {"text": TEXT, "model": "mine"}))
    assert all("previous" in answer.content[0].text for answer in answers)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        *(({"model": name}, "outside of the folder") for name in ("../own", "/etc", "a/../../own", "link")),
        *(({"model": name}, "there is no") for name in ("~/own", "./" + "a" * 5000)),
        *(({"image": name}, "outside of the folder") for name in ("/etc/hostname", "link/README.md")),
        ({"model": "model.py:Model"}, "runs no file of code"),
        ({"head": "L9H9"}, "no head L9H9: this model has layers 0-3, heads 0-7"),
        ({"text": ""}, "give a text"),
        ({"text": "\0.trace", "model": "a\0b"}, "there is no"),
    ],
)
def test_what_lies_outside_or_does_not_exist_is_told_in_a_sentence(server, tmp_path, words, sentence):
    (tmp_path / "link").symlink_to(BUNDLED)
    (answer,) = ask(server, ("show", {"text": TEXT, **words}))
    assert answer.is_error
    assert sentence in answer.content[0].text


@pytest.mark.subprocess
def test_the_command_serves_over_standard_input_and_output(tmp_path):
    words = ["-m", "attnscope", "mcp", str(tmp_path)]
    server = mcp.StdioServerParameters(command=sys.executable, args=words)
    (answer,) = ask(server, ("stats", {"text": TEXT, "top": 1}))
    assert "1 of 32 heads" in answer.content[0].text
