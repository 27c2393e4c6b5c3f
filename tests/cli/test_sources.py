"""Whatever a command reads: a text, an image, tensors, a file of weights; and where its model comes from."""

import json
import socket

import pytest
from safetensors.torch import save_file
from torch import randn

from tests.models import images
from tests.models.folders import gpt2

TEXT = "The cat sat on the mat."
LOOKING = {
    "stats": ("stats", "--json"),
    "compare": ("compare", "--json"),
    "check": ("check", "any.first > 2", "--json"),
    "info": ("info", "--json"),
}
MODULE = """
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        print("made")
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        print("called")
        return self.attention(x, x, x)[0]
"""


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return images.vision(tmp_path_factory.mktemp("vit"), "vit")


def heads(answer):
    """How many heads an answer speaks of; one for a claim."""
    sites = answer.get("sites")
    return len(answer["claims"]) if "claims" in answer else len(answer["heads"] if sites is None else sites)


@pytest.mark.parametrize("command", LOOKING.values(), ids=LOOKING)
def test_an_image(run, vit, tmp_path, command):
    ran = run(*command, "--image", images.picture(tmp_path / "corner.png"), "-m", vit)
    assert ran.code == (1 if command[0] == "check" else 0), ran.err
    assert heads(json.loads(ran.out)) == {"check": 1, "info": 2}.get(command[0], 4)


@pytest.mark.parametrize("command", LOOKING.values(), ids=LOOKING)
def test_random_tokens(run, command):
    asked = ("--repeat-random", "8", "-m", "own-causal")
    ran = run(*command, *asked)
    assert ran.code == (1 if command[0] == "check" else 0), ran.err
    assert heads(json.loads(ran.out)) == {"check": 1, "info": 3}.get(command[0], 12)
    if command[0] == "compare":
        pair = json.loads(run("compare", *asked, "L1H0", "L1H3", "--json").out)
        assert pair["heads"] == ["L1H0", "L1H3"]


@pytest.mark.parametrize("command", LOOKING.values(), ids=LOOKING)
def test_tensors(run, tmp_path, command):
    (tmp_path / "small.py").write_text(MODULE)
    save_file({"x": randn(1, 5, 8)}, tmp_path / "x.safetensors")
    ran = run(*command, "--inputs", tmp_path / "x.safetensors", "-m", f"{tmp_path / 'small.py'}:Small")
    assert ran.code == (1 if command[0] == "check" else 0), ran.err
    assert heads(json.loads(ran.out)) == {"check": 1, "info": 1}.get(command[0], 2)
    assert "made\n" in ran.err
    assert "called\n" in ran.err


@pytest.mark.parametrize("command", LOOKING.values(), ids=LOOKING)
def test_a_file_of_weights(run, tmp_path, command):
    run("show", TEXT, "-o", tmp_path / "heads.npz")
    ran = run(*command, "--from", tmp_path / "heads.npz")
    assert ran.code == (1 if command[0] == "check" else 0), ran.err
    assert heads(json.loads(ran.out)) == {"check": 1, "info": 4}.get(command[0], 32)


@pytest.mark.parametrize("command", LOOKING.values(), ids=LOOKING)
def test_a_text_that_the_model_writes_on(run, tmp_path, command):
    text = ("--text",) if command[0] == "check" else ("-m", "own-causal")
    ran = run(*command, *text, "Once upon a", "-m", "own-causal", "--generate", "3")
    assert ran.code == (1 if command[0] == "check" else 0), ran.err
    assert command[0] == "check" or "generated 3 tokens" in " ".join(json.loads(ran.out)["notes"])


def test_info_names_its_model_first_or_by_the_option(run):
    assert run("info", "-m", "own", TEXT, "--json").out == run("info", "own", TEXT, "--json").out


def test_several_layers_are_named_in_each_command_alike(run, tmp_path):
    layers = {
        head["layer"] for head in json.loads(run("stats", TEXT, "--layer", "0-1,3", "--json").out)["heads"]
    }
    assert layers == {0, 1, 3}
    run("export", TEXT, "-o", tmp_path, "--layer", "1-2", "--format", "npz")
    files = json.loads((tmp_path / "manifest.json").read_text())
    assert "--layers 1-2" in files["command"]


WRITER = """
import torch
from torch import nn

class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        print("made")
        self.embed = nn.Embedding(8192, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 8192)

    def forward(self, ids):
        print("called")
        x = self.embed(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.attention(x, x, x, attn_mask=mask)[0])
"""


@pytest.mark.parametrize("more", [(), ("--head", "L0H0"), ("--token", "2")])
def test_what_a_file_prints_while_it_writes_text_is_no_part_of_the_answer(run, tmp_path, more):
    (tmp_path / "writer.py").write_text(WRITER)
    model = f"{tmp_path / 'writer.py'}:Writer"
    ran = run("show", "Once upon a", "-m", model, "--generate", "3", "--json", *more)
    assert ran.code == 0, ran.err
    json.loads(ran.out)
    assert "called\n" in ran.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("accelerate")
    return gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("command", ["show", "stats", "compare", "info", "check"])
def test_a_model_may_lie_where_accelerate_puts_it(run, folder, command):
    words = {
        "info": ("info", folder, "--json"),
        "check": ("check", "any.first > 0", "--text", TEXT, "-m", folder),
    }.get(command, (command, TEXT, "-m", folder, "--json"))
    plain, placed = run(*words), run(*words, "--device-map", "auto")
    assert (placed.code, placed.out) == (0, plain.out), placed.err


def test_an_export_may_too(run, folder, tmp_path):
    ran = run("export", TEXT, "-m", folder, "--device-map", "auto", "--format", "npz", "-o", tmp_path)
    assert (ran.code, (tmp_path / "heads.npz").exists()) == (0, True)


def test_a_device_beside_a_device_map_is_refused(run, folder):
    assert (
        run("export", TEXT, "-m", folder, "--device-map", "auto", "--device", "cpu", "-o", "nowhere")
        .refuses("a device map places the layers: leave out the device")
        .err.count("\n")
        == 1
    )


MODEL_COMMANDS = {
    "show": ["show", "The cat."],
    "stats": ["stats", "The cat."],
    "info": ["info"],
    "export": ["export", "The cat.", "-o", "{folder}/out"],
    "check": ["check", "any.previous > 0", "--text", "The cat."],
    "compare": ["compare", "The cat."],
}


@pytest.fixture
def reached(monkeypatch):
    """The addresses that anything tried to reach; nothing is reached."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # what the command sets is taken back after the test
    addresses = []

    def refuse(*arguments, **options):
        addresses.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return addresses


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_offline_a_model_that_is_not_here_is_one_sentence_and_no_connection(run, reached, tmp_path, command):
    arguments = [part.format(folder=tmp_path) for part in MODEL_COMMANDS[command]]
    model = ["nobody/nothing"] if command == "info" else ["-m", "nobody/nothing"]
    run(*arguments, *model, "--offline").refuses("it is not in the cache, and the hub is switched off")
    assert reached == []


def test_without_it_the_hub_is_asked(run, reached):
    run("show", "The cat.", "-m", "nobody/nothing").refuses("the hub cannot be reached")
    assert reached


@pytest.mark.parametrize("model", ["own", "causal_folder"])
def test_offline_a_model_that_is_here_works(run, reached, request, model):
    name = "own" if model == "own" else request.getfixturevalue(model)
    assert run("show", "The cat.", "-m", name, "--offline").code == 0
    assert reached == []
