"""Inputs of every command: text, image, tensors, files of weights; and where the model comes from."""

import io
import json
import socket
import warnings
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file

from attnscope.cli.options import SourceOptions
from attnscope.cli.source import read_text
from attnscope.errors import InputError
from tests.models import images

TEXT = "The cat sat on the mat."
LOOKING = {
    "stats": ("stats", "--json"),
    "compare": ("compare", "--json"),
    "check": ("check", "any.first > 2", "--json"),
    "info": ("info", "--json"),
}
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


def image(run, place):
    return "--image", images.picture(place / "corner.png"), "-m", images.vision(place / "vit", "vit")


def random_tokens(run, place):
    return "--repeat-random", "8", "-m", "own-causal"


def writer(place):
    (place / "writer.py").write_text(WRITER)
    return f"{place / 'writer.py'}:Writer"


def tensors(run, place):
    save_file({"ids": torch.arange(5)[None]}, place / "ids.safetensors")
    return "--inputs", place / "ids.safetensors", "-m", writer(place)


def written(run, place):
    (place / "begun.txt").write_text("Once upon a")
    return "-f", place / "begun.txt", "-m", "own-causal", "--generate", "3"


def weights(run, place):
    run("show", TEXT, "-o", place / "heads.npz")
    return "--from", place / "heads.npz"


HEADS = {image: (4, 2), random_tokens: (12, 3), tensors: (2, 1), weights: (32, 4), written: (12, 3)}
"""By source: its heads, and its layers, which info lists."""


@pytest.mark.sweep(3)
@pytest.mark.parametrize("command", LOOKING)
@pytest.mark.parametrize("source", HEADS, ids=lambda source: source.__name__)
def test_every_command_answers_for_every_source(run, tmp_path, source, command):
    ran = run(*LOOKING[command], *source(run, tmp_path))
    assert ran.code == (1 if command == "check" else 0), ran.err
    answer, (count, layers) = json.loads(ran.out), HEADS[source]
    listed = {"check": "claims", "info": "sites"}.get(command, "heads")
    assert len(answer[listed]) == {"check": 1, "info": layers}.get(command, count)
    if source is tensors:  # what the model's file prints is no part of the answer
        assert {"made", "called"} <= {*ran.err.splitlines()}
    if source is written and command != "check":
        assert "generated 3 tokens" in " ".join(answer["notes"])


@pytest.mark.parametrize("command", [("show", "--head", "L0H1"), ("stats",)], ids=lambda words: words[0])
def test_part_of_a_batch_equals_its_text_alone(run, tmp_path, command):
    ids = torch.randint(0, 8192, (3, 6), generator=torch.manual_seed(0))
    made = f"{writer(tmp_path)}"
    (tmp_path / "writer.py").write_text(
        WRITER.replace("super().__init__()", "super().__init__(); torch.manual_seed(0)")
    )
    save_file({"ids": ids}, tmp_path / "all.safetensors")
    save_file({"ids": ids[1:2]}, tmp_path / "one.safetensors")
    ran = run(*command, "--inputs", tmp_path / "all.safetensors", "-m", made, "--part", 1, "--json")
    part, whole = (
        json.loads(ran.out),
        json.loads(run(*command, "--inputs", tmp_path / "one.safetensors", "-m", made, "--json").out),
    )
    assert "part 1 of the batch" in part["notes"]
    if command[0] == "show":
        ours, theirs = (np.array(each["weights"], float) for each in (part, whole))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    for ours, theirs in zip(part.get("heads", ()), whole.get("heads", ()), strict=True):
        assert ours["scores"]["entropy"]["value"] == pytest.approx(theirs["scores"]["entropy"]["value"])
    run(*command, "--inputs", tmp_path / "all.safetensors", "-m", made, "--part", 3).refuses(
        "has the parts 0-2"
    )


LOOP = """
import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.text, self.once = (nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(2))
        self.layers = nn.ModuleList(nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(2))
        self.maps = []

    def forward(self, noise, prompt):
        prompt = prompt + self.text(prompt, prompt, prompt)[0]
        for _ in range(3):
            for layer in self.layers:
                change, weights = layer(noise, prompt, prompt, average_attn_weights=False)
                self.maps.append(weights)
                noise = noise + change
        return noise
"""


@pytest.fixture
def looping(tmp_path):
    """A model in a file that loops over its layers, its inputs, and what its layers return themselves."""
    (tmp_path / "loop.py").write_text(LOOP)
    inputs = {"noise": torch.randn(1, 4, 16), "prompt": torch.randn(1, 5, 16)}
    save_file(inputs, tmp_path / "noise.safetensors")
    space = {}
    exec(LOOP, space)
    model = space["Denoiser"]().eval()
    with torch.inference_mode():
        model(**inputs)
    maps = torch.cat(model.maps).unflatten(0, (3, 2)).numpy()  # [step, layer, head, query, key]
    return ("--inputs", tmp_path / "noise.safetensors", "-m", f"{tmp_path}/loop.py:Denoiser"), maps


@pytest.mark.parametrize("steps", ["mean", "0", "2"])
def test_steps_of_a_loop_are_averaged_or_chosen(run, looping, steps):
    given, maps = looping
    expected = maps.mean(0) if steps == "mean" else maps[int(steps)]
    for layer in range(2):
        ran = run("show", *given, "--steps", steps, "--head", f"cross L{layer}H3", "--json")
        np.testing.assert_allclose(json.loads(ran.out)["weights"], expected[layer, 3], atol=1e-6)
    answer = json.loads(run("stats", *given, "--steps", steps, "--json", "--kind", "cross").out)
    assert len(answer["heads"]) == 2 * 4
    assert any("of the 3 steps of a loop" in note for note in answer["notes"])


def test_steps_that_do_not_exist_are_refused(run, looping):
    given, _ = looping
    run("show", *given, "--steps", "3").refuses("has the steps 0-2")
    run("show", *given, "--steps", "-1").refuses("is mean or a number from 0")
    run("show", "The cat sat.", "-m", "own", "--steps", "mean").refuses("each of its layers attends once")


@pytest.mark.parametrize("count", [4, 5])
def test_labels_that_fit_no_axis_are_noted(run, tmp_path, count):
    (tmp_path / "floats.py").write_text(
        "from torch import nn\n\nclass Reads(nn.MultiheadAttention):\n    def __init__(self):\n"
        "        super().__init__(8, 2, batch_first=True)\n\n    def forward(self, x):\n"
        "        return super().forward(x, x, x)[0]\n"
    )
    save_file({"x": torch.randn(1, 5, 8)}, tmp_path / "x.safetensors")
    (tmp_path / "labels.txt").write_text("\n".join("abcdefg"[:count]))
    given = "--inputs", tmp_path / "x.safetensors", "--labels", tmp_path / "labels.txt"
    answer = json.loads(run("stats", *given, "-m", f"{tmp_path / 'floats.py'}:Reads", "--json").out)
    lost = [note for note in answer["notes"] if "labels fit no axis" in note]
    assert lost == (["the 4 labels fit no axis: there are 5 positions"] if count == 4 else [])


def test_developer_warnings_of_models_are_hidden(run, tmp_path):
    asked = tensors(run, tmp_path)
    with (tmp_path / "writer.py").open("a") as file:
        file.write("\nimport warnings\nwarnings.warn('a prototype that may change')\n")
    with warnings.catch_warnings(record=True) as shown:
        warnings.resetwarnings()
        assert run("show", *asked).code == 0
    assert [str(each.message) for each in shown] == []


def test_info_takes_its_model_as_argument_or_option(run):
    assert run("info", "-m", "own", TEXT, "--json").out == run("info", "own", TEXT, "--json").out


def test_output_of_model_code_is_not_in_the_answer(run, tmp_path):
    ran = run("show", "Once upon a", "-m", writer(tmp_path), "--generate", "3", "--json")
    assert json.loads(ran.out)
    assert "called\n" in ran.err


@pytest.fixture
def reached(monkeypatch):
    """What is called when anything tries to reach an address; nothing is reached."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # what the command sets is taken back after the test
    refuse = Mock(side_effect=OSError("no network in this test"))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return refuse


@pytest.mark.parametrize("typed", [("show", "The cat.", "-m"), ("info",)], ids=" ".join)
def test_offline_refuses_uncached_model_without_connecting(run, reached, typed):
    run(*typed, "nobody/nothing", "--offline").refuses("not in the cache, and the hub is switched off")
    assert not reached.called


def test_hub_is_asked_without_offline(run, reached):
    run("show", "The cat.", "-m", "nobody/nothing").refuses("the hub cannot be reached")
    assert reached.called


def test_offline_accepts_local_models(run, reached, causal_folder):
    for model in ("own", causal_folder):
        assert run("show", "The cat.", "-m", model, "--offline").code == 0
    assert not reached.called


READ = [  # what is typed, what stands in a file or in a pipe, and what is read or said
    ({"text": "one"}, None, ("one", None)),
    ({"text": "one", "second_text": "two"}, None, ("one", "two")),
    ({"text": "nothing.txt"}, None, ("nothing.txt", None)),
    ({"text": "-"}, b"from a pipe\n", ("from a pipe", None)),
    ({}, "\ufeffSchrödinger\nagain\n".encode(), ("Schrödinger\nagain", None)),
    ({}, b"first\r\nsecond\r\n", ("first\nsecond", None)),
    ({}, b"first\rsecond\r", ("first\nsecond", None)),
    ({"line": 2}, b"first\r\nleft\tright\r\n", ("left", "right")),
    ({"line": 2}, "one\u2028line\x0c\nsecond".encode(), ("second", None)),
    ({"line": 1}, b"first\nleft\tright\n", ("first", None)),
    ({"line": 2}, b"first\nleft\tright\n", ("left", "right")),
    ({"text": "one", "second_text": ""}, None, "the second text is empty"),
    ({"text": "caf\udce9"}, None, "the text is not UTF-8"),
    ({"text": "-"}, None, "standard input is closed: give a text, or --file FILE"),
    ({}, b" \n\t\n", r"the text is empty: .*text\.txt: give at least one word"),
    ({}, "cafe\u00e9".encode("latin-1"), "is not UTF-8 text: byte 4 is 0xe9"),
    *(({"line": line}, b"a\nb\n", "the input has lines 1 to 2") for line in (0, 3, -1)),
]


@pytest.mark.parametrize(("typed", "content", "found"), READ)
def test_text_is_read_from_argument_pipe_file_or_line(tmp_path, monkeypatch, typed, content, found):
    (tmp_path / "text.txt").write_bytes(content or b"")
    monkeypatch.setattr("sys.stdin", content and io.TextIOWrapper(io.BytesIO(content)))
    asked = SourceOptions(**typed, file=None if "text" in typed else tmp_path / "text.txt")
    refused = pytest.raises((InputError, typer.BadParameter), match=str(found))
    with refused if isinstance(found, str) else nullcontext():
        assert read_text(asked) == found


def test_folder_as_text_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder: give a text file"):
        read_text(SourceOptions(file=tmp_path))


def test_path_given_as_text_suggests_the_file_option(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("words")
    with pytest.raises(InputError, match=r"is a file: did you mean --file .*text\.txt\?"):
        read_text(SourceOptions(text=str(path)))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bytes(path))))
    assert read_text(SourceOptions(text="-")) == (str(path), None)
