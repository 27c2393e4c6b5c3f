"""How large a model will be is known before it is loaded, and what a pass takes at least before it runs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope import limits as memory
from attnscope.errors import SizeError
from attnscope.models import load
from attnscope.models.foreign import weights_size
from attnscope.models.model import pass_size
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
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


class Most(TorchDispatchMode):
    """Remembers the most memory that the activations of one operation took, going in and coming out."""

    def __init__(self, module):
        super().__init__()
        self.weights = {weights.untyped_storage().data_ptr() for weights in module.parameters()}
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else [result]
        parts = {
            part.untyped_storage().data_ptr(): part.nbytes
            for part in (*args, *results)
            if isinstance(part, torch.Tensor)
        }
        self.bytes = max(self.bytes, sum(size for at, size in parts.items() if at not in self.weights))
        return result


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("texts", [1, 3])
def test_a_pass_takes_at_least_what_is_said_and_not_much_less_at_its_widest(folder, kernel, texts):
    module = load(folder).module
    module.set_attn_implementation(kernel)
    said = pass_size(module, texts, 64)
    with torch.inference_mode(), Most(module) as seen:
        module(input_ids=torch.zeros(texts, 64, dtype=torch.int64))
    assert said <= seen.bytes <= 3 * said


def test_a_text_too_long_for_the_memory_is_refused_before_the_model_runs(folder, monkeypatch):
    model = load(folder)
    prepared = model.prepare("The cat sat on the mat.")
    monkeypatch.setattr(type(model.module), "__call__", lambda *args, **kwargs: pytest.fail("it ran"))
    monkeypatch.setattr(memory, "UNNOTICED", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    with pytest.raises(SizeError, match=r"tokens would take .* are free: cut the text with --max-tokens"):
        measure_heads(model, prepared, Selection())
