import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnscope.errors import ModelError, OutputError
from attnscope.network import (
    Encoder,
    EncoderConfig,
    is_encoder_folder,
    load_config,
    load_encoder,
    save_encoder,
)
from attnscope.training.data import train_tokenizer

CONFIG = EncoderConfig(vocabulary=64, width=16, layers=2, heads=2, hidden=32, max_positions=24)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    save_encoder(tmp_path / "model", Encoder(CONFIG), train_tokenizer(["a bare cat", "a cab"], 64))
    return tmp_path / "model"


def test_what_was_saved_is_loaded(folder):
    torch.manual_seed(0)
    original = Encoder(CONFIG).eval()
    state = torch.random.get_rng_state()
    encoder, tokenizer = load_encoder(folder)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert encoder.config == load_config(folder) == CONFIG
    assert not encoder.training
    encoding = tokenizer.encode("a cab", "a cat")
    ids, segments = torch.tensor([encoding.ids]), torch.tensor([encoding.type_ids])
    assert torch.equal(encoder(ids, segments), original(ids, segments))
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}


def test_half_precision_is_loaded_as_float32(tmp_path):
    torch.manual_seed(0)
    original = Encoder(CONFIG)
    save_encoder(tmp_path, original, train_tokenizer(["a bare cat"], 64), torch.float16)
    assert {x.dtype for x in load_file(tmp_path / "model.safetensors").values()} == {torch.float16}
    for name, weight in load_encoder(tmp_path)[0].state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, original.state_dict()[name].half().float())


def test_a_folder_without_a_model_says_so(tmp_path, folder):
    with pytest.raises(ModelError, match=r"nowhere holds no model: there is no config\.json"):
        load_encoder(tmp_path / "nowhere")
    assert not is_encoder_folder(tmp_path)
    assert is_encoder_folder(folder)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert not is_encoder_folder(tmp_path)
    with pytest.raises(ModelError, match="not the config of an attnscope encoder"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        load_encoder(tmp_path)


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
def test_a_config_that_does_not_fit_is_refused(folder, changes, message):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        load_encoder(folder)


def test_weights_must_be_floats_in_safetensors(folder):
    path = folder / "model.safetensors"
    state = load_file(path)
    save_file({**state, "head_bias": state["head_bias"].long()}, path)
    with pytest.raises(ModelError, match=r"'head_bias' is torch\.int64, not a float"):
        load_encoder(folder)
    path.write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        load_encoder(folder)
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is there, but only safetensors are read"):
        load_encoder(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="there are no weights to read"):
        load_encoder(folder)


def test_a_place_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    encoder, tokenizer = Encoder(CONFIG), train_tokenizer(["a cat"], 64)
    with pytest.raises(OutputError, match="cannot be written"):
        save_encoder(tmp_path / "file", encoder, tokenizer)
