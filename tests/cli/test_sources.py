"""Whatever a command looks at may come as a text, an image, tensors, a file of weights, or be written on."""

import json

import pytest
from safetensors.torch import save_file
from torch import randn

from tests.models import images

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
