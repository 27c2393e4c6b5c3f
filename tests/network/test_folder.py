import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnscope import network
from attnscope.errors import ModelError, OutputError
from attnscope.training.data import train_tokenizer

SIZES = {"vocabulary": 64, "width": 16, "layers": 2, "heads": 2, "hidden": 32, "max_positions": 24}
CONFIG = network.EncoderConfig(**SIZES, positions="none", rotary_base=50.0, causal=True, trained=True)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["a bare cat", "a cab"], 64)
    network.save_encoder(tmp_path / "model", network.Encoder(CONFIG), tokenizer)
    return tmp_path / "model"


def test_saved_encoder_loads_unchanged(folder):
    torch.manual_seed(0)
    original = network.Encoder(CONFIG).eval()
    state = torch.random.get_rng_state()
    encoder, tokenizer = network.load_encoder(folder)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert encoder.config == network.load_config(folder) == CONFIG
    assert not encoder.training
    encoding = tokenizer.encode("a cab", "a cat")
    ids, segments = torch.tensor([encoding.ids]), torch.tensor([encoding.type_ids])
    assert torch.equal(encoder(ids, segments), original(ids, segments))
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}


def test_half_precision_weights_load_as_float32(tmp_path):
    original = network.Encoder(CONFIG)
    network.save_encoder(tmp_path, original, train_tokenizer(["a bare cat"], 64), torch.float16)
    assert {x.dtype for x in load_file(tmp_path / "model.safetensors").values()} == {torch.float16}
    rounded = {name: weight.half().float() for name, weight in original.state_dict().items()}
    torch.testing.assert_close(dict(network.load_encoder(tmp_path)[0].state_dict()), rounded, rtol=0, atol=0)


def test_folder_without_encoder_is_refused(tmp_path, folder):
    assert network.is_encoder_folder(folder)
    assert not network.is_encoder_folder(tmp_path)
    with pytest.raises(ModelError, match=r"nowhere holds no model: there is no config\.json"):
        network.load_encoder(tmp_path / "nowhere")
    for content, said in (
        ('{"model_type": "bert"}', "not the config of an attnscope encoder"),
        ("[1, 2", "cannot read .* as JSON"),
    ):
        (tmp_path / "config.json").write_text(content)
        assert not network.is_encoder_folder(tmp_path)
        with pytest.raises(ModelError, match=said):
            network.load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, r"config\.json: 3 heads do not divide a width of 16"),
        ({"version": 2}, "has version 2, but this release reads version 1"),
        ({"hidden": 48}, r"'layers\.0\.linear1\.weight' is \(32, 16\), not \(48, 16\)"),
        ({"layers": 3}, r"lacks 'layers\.2"),
        ({"layers": 1}, r"holds 'layers\.1.*no place there"),
        ({"vocabulary": 8}, r"the tokenizer has \d+ tokens, but the model only 8"),
    ],
)
def test_config_that_contradicts_weights_is_refused(folder, changes, message):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        network.load_encoder(folder)


def test_weights_must_be_floats_in_safetensors(folder):
    path, other = folder / "model.safetensors", folder / "pytorch_model.bin"
    state = load_file(path)
    state["head_bias"] = state["head_bias"].long()
    for change, said in (
        (lambda: save_file(state, path), "'head_bias' is torch.int64, not a float"),
        (lambda: path.write_bytes(b"not safetensors"), "cannot read .* as safetensors"),
        (lambda: path.rename(other), "pytorch_model.bin is there, but only safetensors are read"),
        (other.unlink, "there are no weights to read"),
    ):
        change()
        with pytest.raises(ModelError, match=said):
            network.load_encoder(folder)


def test_saving_to_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        network.save_encoder(tmp_path / "file", network.Encoder(CONFIG), train_tokenizer(["a cat"], 64))
