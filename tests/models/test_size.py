"""How large a model will be is known before it is loaded."""

import pytest
import torch

from attnscope import memory
from attnscope.errors import SizeError
from attnscope.models import load
from attnscope.models.size import weights_size
from tests.models.folders import gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_size_is_that_of_the_loaded_weights(folder, dtype):
    module = load(folder).module
    numbers = sum(weights.numel() for weights in module.parameters())
    assert weights_size(folder, None, dtype) == numbers * dtype.itemsize


def test_as_stored_it_is_the_size_of_the_files(folder):
    stored = weights_size(folder, None, None)
    assert stored == pytest.approx(weights_size(folder, None, torch.float32), rel=0.1)


def test_what_is_not_here_yet_or_damaged_has_no_size(tmp_path):
    assert weights_size("nobody/nothing", None, torch.float32) == 0
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    assert weights_size(str(tmp_path), None, torch.float32) == 0


def test_a_model_that_would_not_fit_is_refused_before_it_is_loaded(folder, monkeypatch):
    monkeypatch.setattr(memory, "UNNOTICED", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    with pytest.raises(
        SizeError, match=r"gpt2.* with its weights would take .* free: take a smaller --dtype"
    ):
        load(folder)
