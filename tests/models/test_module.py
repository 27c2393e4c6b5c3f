"""A user's own modules and model kinds: names, inputs, and errors."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import attnscope.models
from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.request import InputRequest
from attnscope.questions.composition import measure_composition
from attnscope.questions.logits import direct_effects
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, overview
from attnscope.storage.tensors import read_tensors
from tests.capture.observing import MapObserver
from tests.models.folders import gpt2, minilm


def prepare(model, file, **tensors):
    """What a model reads of a file of tensors, which is written first."""
    if tensors:
        save_file(tensors, file)
    return InputRequest(inputs=file).prepare(model)


SOURCE = """
import torch
from torch import nn

import beside
from tests.capture.modules import Fused, blocks


class Gpt(nn.Module):
    def __init__(self, vocabulary=40000, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.blocks = nn.Embedding(vocabulary, 32), blocks(lambda: Fused(32), layers)

    def forward(self, ids):
        return self.blocks(self.embed(ids))


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, queries, keys):
        return self.attend(queries, keys, keys)[0]


def one_layer():
    return Gpt(layers=1)


def needs_a_size(width):
    return Gpt()


def breaks():
    raise ValueError("no weights here")


model = Gpt(layers=beside.LAYERS)
small = Gpt(vocabulary=5)
number = 3


class Holder:
    inner = model


def tiny(positions=3):
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "n_positions": positions, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).eval()


def longer():
    return tiny(8)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    (folder / "beside.py").write_text("LAYERS = 3\n")
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "tiny_gpt.py").write_text(SOURCE)
    return folder / "tiny_gpt.py"


@pytest.mark.parametrize(
    ("name", "layers"), [("model", 3), ("Gpt", 2), ("one_layer", 1), ("Holder.inner", 3)]
)
def test_instance_class_or_function_gives_a_model(file, name, layers):
    model = load(f"{file}:{name}")
    seen = overview(model, model.prepare("The cat sat."), Selection())
    assert [layer.layer for layer in seen.grids["decoder"].layers] == list(range(layers))


def test_module_takes_a_chosen_tokenizer(file):
    prepared = load(f"{file}:model", tokenizer=minilm()).prepare("The cat sat.")
    assert prepared.arguments[0].tolist() == [[101, 1996, 4937, 2938, 1012, 102]]


def as_numpy(tensors):
    return {name: tensor.numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("inputs.safetensors", lambda path, tensors: save_file(tensors, path)),
        ("inputs.npz", lambda path, tensors: np.savez(path, **as_numpy(tensors))),
        ("numbered.npz", lambda path, tensors: np.savez(path, *as_numpy(tensors).values())),
        ("inputs.pt", lambda path, tensors: torch.save(tensors, path)),
    ],
)
def test_tensor_inputs_bind_by_name_or_position(file, tmp_path, name, write):
    queries, keys = torch.randn(1, 3, 16), torch.randn(1, 7, 16)
    write(tmp_path / name, {"queries": queries, "keys": keys})
    model = load(f"{file}:Cross")
    seen = overview(model, prepare(model, tmp_path / name), Selection())
    assert seen.grids["cross"].size == (3, 7)
    expected = model.module.attend(queries, keys, keys, average_attn_weights=False)[1]
    np.testing.assert_allclose(seen.grids["cross"].layers[0].values, expected[0].detach(), atol=1e-6)


def test_tensor_input_names_must_be_forward_arguments(file, tmp_path):
    with pytest.raises(InputError, match="no input 'query': its forward takes queries, keys"):
        prepare(load(f"{file}:Cross"), tmp_path / "inputs.safetensors", query=torch.zeros(1))
    model = load("own")
    ids = prepare(model, tmp_path / "own.safetensors", ids=torch.tensor([[5, 6, 7]]))
    assert len(model.run(ids, []).sites) == 4
    model = load(gpt2(tmp_path / "gpt2"))
    read = model.prepare("The cat sat")
    prepared = prepare(model, tmp_path / "ids.safetensors", **read.inputs)
    assert [(token.id, token.text) for token in prepared.tokens] == [(t.id, t.text) for t in read.tokens]
    assert len(model.run(prepared, []).sites) == 2


def test_pickled_objects_in_a_tensor_file_are_never_loaded(tmp_path):
    class Planted:
        def __reduce__(self):
            return (open, (str(tmp_path / "planted"), "w"))

    torch.save({"x": Planted()}, tmp_path / "inputs.pt")
    np.savez(tmp_path / "inputs.npz", x=np.array([Planted()], dtype=object))
    for name in ("inputs.pt", "inputs.npz"):
        with pytest.raises(InputError, match=f"cannot read tensors from .*{name}"):
            read_tensors(tmp_path / name)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("name", ["inputs.safetensors", "inputs.npz", "inputs.pt"])
def test_unreadable_tensor_file_is_one_sentence(tmp_path, name):
    with pytest.raises(InputError, match=r"must end in \.safetensors, \.npz or \.pt"):
        read_tensors(tmp_path / f"{name}.csv")
    with pytest.raises(InputError, match=f"no such file: .*{name}"):
        read_tensors(tmp_path / name)
    (tmp_path / name).write_bytes(b"\x00\x01\x02 not a tensor file")
    with pytest.raises(InputError, match=f"cannot read tensors from .*{name}"):
        read_tensors(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("{}/tiny_gpt.py:nothing", "no 'nothing' in .*: it has .*Gpt"),
        ("{}/tiny_gpt.py:number", "is int, not a torch.nn.Module"),
        ("{}/tiny_gpt.py:needs_a_size", "cannot be called without arguments .*write a function that makes"),
        ("{}/tiny_gpt.py:breaks", "ValueError: no weights here"),
        ("{}/gone.py:Model", r"no such file: .*gone\.py"),
        ("{}/broken.py:Model", "cannot be imported: ZeroDivisionError"),
        ("no_such_package:Model", "no_such_package cannot be imported"),
    ],
)
def test_invalid_module_name_is_explained(file, name, sentence):
    with pytest.raises(ModelError, match=sentence):
        load(name.format(file.parent))


def test_failing_module_error_has_the_input_shape(file):
    model = load(f"{file}:small")
    with pytest.raises(ModelError, match=r"fails on inputs of shape \[1, 6\]: IndexError"):
        overview(model, model.prepare("The cat sat."), Selection())


@pytest.mark.filterwarnings("error")
def test_module_loads_by_dotted_name_and_reports_no_attention():
    model = load("torch.nn:Identity")
    assert isinstance(model.module, torch.nn.Identity)
    with pytest.raises(ModelError, match="has no attention to show"):
        overview(model, model.prepare("The cat sat."), Selection())


def test_short_context_module_is_probed_within_its_limits(file):
    model, ids = load(f"{file}:tiny"), torch.tensor([[3, 5, 7]])
    written = direct_effects(model, model.prepare_tensors({"input_ids": ids}), None, None)
    with torch.no_grad():
        logits = model.module(ids).logits[0, -1]
    assert written.score == pytest.approx(float(logits.max()), abs=1e-5)
    assert f"'id {int(logits.argmax())}'" in written.prediction
    feeds = measure_composition(model, model.prepare_any()).feeds
    assert {each.way for each in feeds} == {"Q", "K", "V"}
    assert len(feeds) == 3 * 2 * 2


def test_input_ids_from_tensors_are_tokens_with_repeats(file):
    model, ids = load(f"{file}:longer"), torch.tensor([[3, 5, 7, 2, 3, 5, 7, 2]])
    heads = measure_heads(model, model.prepare_tensors({"input_ids": ids}), Selection()).heads
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        weights = torch.cat(model.module(ids, output_attentions=True).attentions)  # [layer, head, query, key]
    for head in heads:
        rows = weights[head.site.layer, head.head]
        assert head.scores["duplicate"].value == pytest.approx(float(rows.diagonal(-4).mean()), abs=1e-5)
        assert head.scores["induction"].value == pytest.approx(float(rows.diagonal(-3)[1:].mean()), abs=1e-5)


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attend = nn.Embedding(200, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        vectors = self.embed(ids)
        return self.attend(vectors, vectors, vectors)[0]


def test_model_kind_from_the_readme_guide_works():
    text = Path(attnscope.models.__file__).with_name("README.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names: dict = {}
    exec(textwrap.dedent(code), names)
    model = names["LetterModel"]("letters", Letters(), None)
    prepared = model.prepare("abca", limit=Limit(3))
    keep = MapObserver(lambda site: range(2))
    model.run(prepared, [keep])
    assert [token.text for token in keep.maps[0].queries] == ["a", "b", "c"]
    x = model.module.embed(prepared.inputs["ids"])
    expected = model.module.attend(x, x, x, average_attn_weights=False)[1][0]
    torch.testing.assert_close(keep.maps[0].weights[0], expected.detach())
    assert prepared.notes == ("cut: the first 3 of 4 tokens are shown",)
