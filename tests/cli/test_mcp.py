"""The MCP server through the protocol's own client: it reads only its folder, and runs no code."""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from io import BytesIO
from multiprocessing import active_children
from pathlib import Path
from random import Random

import anyio
import pytest
from PIL import Image

import attnscope
from attnscope.cli.commands.mcp import AnsweringProcess, Answers, ServerOptions, make_server
from attnscope.errors import AttnscopeError

mcp = pytest.importorskip("mcp")

TEXT = "The cat sat on the mat because it was tired."
BUNDLED = Path(attnscope.__file__).parent / "pretrained" / "own"
CODE = "from pathlib import Path\nPath('ran').touch()\nimport torch\nM = torch.nn.Linear"


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """What answers in the server's process."""
    monkeypatch.chdir(tmp_path)
    return Answers(ServerOptions(folder=tmp_path))


@pytest.fixture
def worker(tmp_path):
    made = AnsweringProcess(ServerOptions(folder=tmp_path))
    yield made
    made.end()


def ask(server, talk):
    """What a client gets from its talk with a server."""

    async def meet():
        async with mcp.Client(server) as client:
            return await talk(client)

    return asyncio.run(meet())


@pytest.mark.parametrize(
    ("tool", "words", "said"),
    [
        ("load", {}, "own has "),
        ("show", {"text": TEXT}, "L0H7  attends to the next token"),
        ("show", {"text": TEXT, "token": "cat"}, "cat"),
        ("stats", {"text": TEXT, "top": 2}, "2 of 32 heads"),
        ("find", {"text": TEXT, "question": "it -> cat"}, "share  baseline  rank"),
        ("compare", {"text": TEXT}, "nats apart"),
        ("compare", {"text": "The cat sat.", "other": "The dog sat."}, "changes by"),
        ("cut", {"text": "The cat sat on the", "edge": "on -> cat", "target": "mat"}, "log-probability"),
    ],
)
def test_mcp_tool_answers_like_the_terminal(answers, tool, words, said):
    answer = getattr(answers, tool)(**words)
    assert said in (answer if tool != "show" else answer[0])


def test_mcp_reads_models_and_traces_in_its_folder(answers, tmp_path):
    attnscope.load("own").read(TEXT).save(tmp_path / "cat.trace")
    shutil.copytree(BUNDLED, tmp_path / "mine")
    assert "previous" in answers.stats("cat.trace")
    assert "previous" in answers.stats(TEXT, model="mine")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        *(({"model": name}, "outside of the folder") for name in ("../own", "/etc", "a/../../own", "link")),
        *(({"model": name}, "there is no") for name in ("~/own", "./" + "a" * 5000)),
        *(({"image": name}, "outside of the folder") for name in ("/etc/hostname", "link/README.md")),
        ({"head": "L9H9"}, "no head L9H9: this model has layers 0-3, heads 0-7"),
        ({"text": ""}, "give a text"),
        ({"text": "\0.trace", "model": "a\0b"}, "there is no"),
    ],
)
def test_mcp_refuses_paths_outside_or_missing(answers, tmp_path, words, sentence):
    (tmp_path / "link").symlink_to(BUNDLED)
    with pytest.raises(AttnscopeError, match=sentence):
        answers.show(**{"text": TEXT, **words})


CODES = (
    "os:getcwd", "timeit:main", "pdb:help", "http.server:test", "evil:M", "evil.py:M", "./evil.py:M", ":M",
    "x:/evil.py:M", "{folder}/evil.py:M", "evil.py", "own:M", "evil:", "evil.py:M.x", " evil:M", "mine:M",
    "mine/evil.py:M", "a:b/mine", "owner/name:M", "owner//name", "owner/name/more", "owner/na me",
    "-owner/name", "owner/name\n", "hf://owner/name", "ＯＷＮ:M",
)  # fmt: skip
"""What names code, or nearly; and what is nearly the id of a model on the hub."""


@pytest.mark.parametrize("name", CODES)
def test_mcp_refuses_invalid_model_name_before_loading(answers, tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("attnscope.notebook.reader.load", lambda *name, **how: pytest.fail(f"loads {name}"))
    (tmp_path / "x:").mkdir()
    for place in ("mine", "a:b/mine"):
        shutil.copytree(BUNDLED, tmp_path / place)
    for place in ("", "x:", "mine"):
        (tmp_path / place / "evil.py").write_text(CODE)
    with pytest.raises(AttnscopeError):
        answers.load(name.format(folder=tmp_path))
    assert not (tmp_path / "ran").exists()


def test_mcp_accepts_only_local_folders_and_ids(answers, tmp_path):
    shutil.copytree(BUNDLED, tmp_path / "mine")
    chance, parts = (
        Random(0),
        ("own", "mine", "a", ":", "/", "..", ".", "~", ".py", "os", "-", "\\", "\n", " "),
    )
    accepted = set()
    for _ in range(5000):
        name = "".join(chance.choices(parts, k=chance.randint(1, 5)))
        try:
            accepted.add(answers.folder.model(name))
        except AttnscopeError:
            continue
    assert {"own", "./mine", "a/a"} <= accepted
    for each in accepted - {"./mine"}:
        words = each.split("/")
        assert len(words) <= 2, each
        assert all(word[0].isalnum() and set(word) <= set("ownmie.a-pys") for word in words), each


def test_mcp_loads_hub_model_by_id(answers, monkeypatch):
    loaded = []
    monkeypatch.setattr("attnscope.notebook.reader.load", lambda name, **how: loaded.append((name, how)))
    with pytest.raises(AttributeError):
        answers.load("openai-community/gpt2")
    assert loaded == [("openai-community/gpt2", {"device": "auto"})]


@pytest.mark.parametrize("inside", ["tokenizer.json", "more/notes.txt"])
def test_mcp_refuses_link_out_of_a_model_folder(answers, tmp_path, tmp_path_factory, inside):
    shutil.copytree(BUNDLED, tmp_path / "mine")
    link = tmp_path / "mine" / inside
    link.parent.mkdir(exist_ok=True)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / link.name
    shutil.copy(BUNDLED / "tokenizer.json", elsewhere)
    link.unlink(missing_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(AttnscopeError, match="outside of the folder"):
        answers.load("mine")
    link.unlink()
    shutil.copy(elsewhere, link)
    assert answers.load("mine").startswith("./mine has ")


def test_mcp_follows_links_only_within_its_folder(answers, tmp_path):
    shutil.copytree(BUNDLED, tmp_path / "mine")
    (tmp_path / "mine" / "more").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    assert answers.folder.model("mine") == "./mine"
    (tmp_path / "other" / "tokenizer.json").symlink_to(BUNDLED / "tokenizer.json")
    with pytest.raises(AttnscopeError, match="outside of the folder"):
        answers.folder.model("mine")


@pytest.mark.subprocess
def test_mcp_protocol_returns_images_texts_and_errors(worker, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # for both processes

    async def talk(client):
        shown = await client.call_tool("show", {"text": TEXT, "head": "L2H1"})
        refused = await client.call_tool("load", {"model": "os:getcwd"})
        return (await client.list_tools()).tools, shown, refused

    tools, shown, refused = ask(make_server(worker), talk)
    assert [each.name for each in tools] == ["load", "show", "stats", "find", "compare", "cut"]
    text, picture = shown.content
    assert text.text == repr(attnscope.load("own").read(TEXT).head("L2H1"))
    assert Image.open(BytesIO(base64.b64decode(picture.data))).width > 300
    assert refused.is_error
    assert "there is no os:getcwd" in refused.content[0].text


SLOW = {"text": ("x" * 21 + " ") * 30_000, "model": "slow"}


@pytest.fixture
def slow(tmp_path):
    """A model folder whose tokenizer takes minutes, in a library where no signal of Python's arrives."""
    shutil.copytree(BUNDLED, tmp_path / "slow")
    file = tmp_path / "slow" / "tokenizer.json"
    settings = json.loads(file.read_bytes())
    settings["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""}
    file.write_text(json.dumps(settings))


@pytest.mark.slow
@pytest.mark.subprocess
def test_endless_question_is_stopped_and_others_refused_meanwhile(worker, slow):
    async def talk(client):
        worker.options = replace(worker.options, seconds=1.0)
        both = await asyncio.gather(client.call_tool("show", SLOW), client.call_tool("load", {}))
        worker.options = replace(worker.options, seconds=600)
        return *both, await client.call_tool("load", {})

    stopped, meanwhile, later = ask(make_server(worker), talk)
    assert len(active_children()) == 1
    assert "takes longer than 1 seconds, and was stopped" in stopped.content[0].text
    assert "another question is being answered" in meanwhile.content[0].text
    assert "own has " in later.content[0].text


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.subprocess
def test_cancelled_mcp_request_is_stopped(worker, slow):
    async def talk(client):
        await client.call_tool("load", {"model": "slow"})
        with anyio.move_on_after(0.5):
            await client.call_tool("show", SLOW)
        return await client.call_tool("load", {})

    assert "own has " in ask(make_server(worker), talk).content[0].text
    assert len(active_children()) == 1


@pytest.mark.nightly
@pytest.mark.subprocess
def test_killed_mcp_worker_is_reported_and_replaced(worker):
    async def talk(client):
        await client.call_tool("load", {})
        (process,) = worker.pool._processes.values()
        process.kill()
        return await client.call_tool("load", {}), await client.call_tool("load", {})

    told, later = ask(make_server(worker), talk)
    assert "the process that answers was ended" in told.content[0].text
    assert "own has " in later.content[0].text


@pytest.mark.subprocess
def test_mcp_serves_over_standard_streams(tmp_path):
    words = ["-m", "attnscope", "mcp", str(tmp_path)]
    server = mcp.StdioServerParameters(command=sys.executable, args=words)
    answer = ask(server, lambda client: client.call_tool("stats", {"text": TEXT, "top": 1}))
    assert "1 of 32 heads" in answer.content[0].text


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_mcp_server_during_a_request(tmp_path, slow, number):
    """With its process, though a thread waits for standard input, which stays open."""
    said = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    call = {"name": "show", "arguments": SLOW}
    lines = [
        {"id": 1, "method": "initialize", "params": said},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "load", "arguments": {"model": "slow"}}},
        {"id": 3, "method": "tools/call", "params": call},
        {"id": 4, "method": "tools/call", "params": {"name": "load", "arguments": {}}},
    ]
    command, pipe = [sys.executable, "-m", "attnscope", "mcp", tmp_path], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as server:
        for line in lines:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **line}).encode() + b"\n")
            server.stdin.flush()
            if line.get("id") in (1, 2, 4):
                answer = json.loads(server.stdout.readline())
        assert "another question is being answered" in answer["result"]["content"][0]["text"]
        server.send_signal(number)
        assert server.wait(60) == 128 + number
        server.communicate(timeout=60)  # its process holds standard error open, too
    assert not [name for name in os.listdir(tmp_path) if name != "slow"]
