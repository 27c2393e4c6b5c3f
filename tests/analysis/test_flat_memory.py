"""Statistics of a long text allocate nothing that grows with the square of its length."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.analysis.selection import Selection
from attnscope.analysis.stats import stats
from attnscope.models import load
from tests.models.folders import gpt2

WORDS = "The cat sat on the mat because it was tired, and words look back at words. "


class Largest(TorchDispatchMode):
    """Remembers the most memory that one tensor took, which is its own and no view of another."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(gpt2(tmp_path_factory.mktemp("long"), n_positions=8192, n_layer=1, n_embd=16, n_head=2))


def largest(model, tokens, **how):
    prepared = model.prepare(WORDS * (tokens // 8), max_tokens=tokens)
    assert len(prepared.tokens) == tokens
    with Largest() as seen:
        found = stats(model, prepared, Selection(), **how)
    assert found.heads[0].figures["entropy"].rows == tokens - 1
    return seen.bytes


@pytest.mark.slow
def test_the_largest_tensor_of_a_single_pass_does_not_grow_with_the_square(model):
    short, long = largest(model, 2048), largest(model, 8192)
    assert long < 4 * 8192**2 / 8  # far from one head's matrix in float32
    assert long <= 4.1 * short  # four times the text, not sixteen times the memory


@pytest.mark.slow
def test_nor_does_it_beside_the_kernel(model):
    blocks = largest(model, 4096, exact_kernel=True)
    assert blocks <= 8 * (1 << 21) * 1.1  # one block of rows, in float64
    assert blocks < 2 * 4 * 4096**2
