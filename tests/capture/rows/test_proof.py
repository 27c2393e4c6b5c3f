"""Weights are held against what the kernel returned; what differs is said, and never trusted."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnscope.capture import FUSED, recording
from attnscope.capture.rows.scores import join_differences
from attnscope.fused.fused_pass import FusedPass
from attnscope.questions.sentences import note_unproved, provenance
from tests.capture import modules


class Attending(nn.Module):
    """One call of torch's kernel."""

    def forward(self, states):
        return sdpa(states, states, states)


def test_a_kernel_that_does_something_else_is_said_beside_the_picture():
    states = torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(0))
    model = Attending()

    class Off(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result + 0.5 if func.__name__ == "scaled_dot_product_attention" else result

    with torch.inference_mode(), Off(), recording(model) as record:
        model(states)
    (site,) = record.sites
    assert site.differs
    assert "do not trust layer 0" in provenance(record.sites)
    with torch.inference_mode(), recording(model) as record:
        model(states)
    assert not record.sites[0].differs
    assert "trust" not in provenance(record.sites)


def test_a_fused_pass_whose_rows_differ_is_left_to_the_kernel(monkeypatch):
    from attnscope.fused import fused_pass

    states = torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(0))
    model, plain = Attending(), fused_pass.attend
    with torch.inference_mode(), recording(model, fused=FusedPass(shortest=1)) as record:
        model(states)
    assert record.sites[0].kernel == FUSED
    monkeypatch.setattr(
        fused_pass, "attend", lambda *args, **options: (plain(*args, **options)[0] + 0.01, None)
    )
    with torch.inference_mode(), recording(model, fused=FusedPass(shortest=1)) as record:
        output = model(states)
    assert torch.equal(output, sdpa(states, states, states))
    (site,) = record.sites
    assert site.kernel == "sdpa"
    assert "rows of its output differ from the formula by 0.0" in site.refusal


def test_a_product_that_gives_something_else_is_said():
    class Off(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return (
                result + 1
                if func.__name__ in ("matmul", "__matmul__") and result.shape[-2:] == (6, 4)
                else result
            )

    torch.manual_seed(0)
    module = modules.Softmaxed(modules.SOFTMAXES["torch.softmax"]).eval()
    with torch.inference_mode(), Off(), recording(module) as record:
        module(torch.randn(2, 6, 16))
    assert record.sites[0].differs


def test_weights_and_values_of_another_type_than_their_product_are_not_proved():
    torch.manual_seed(0)
    module = modules.Softmaxed(modules.SOFTMAXES["F.softmax"]).eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), recording(module) as record:
        module(torch.randn(2, 6, 16))
    (site,) = record.sites
    assert site.difference is None or not site.differs
    assert (site.unproved is None) == (site.difference is not None)


def test_attention_in_chunks_that_weighs_values_of_another_type_is_not_proved_and_says_why():
    from transformers import LongformerConfig, LongformerModel

    torch.manual_seed(0)
    config = LongformerConfig(
        vocab_size=99, hidden_size=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=32,
        attention_window=4, max_position_embeddings=64,
    )  # fmt: skip
    model = LongformerModel(config).eval().bfloat16()  # its softmax is single
    with torch.inference_mode(), recording(model) as record:
        model(input_ids=torch.randint(4, 99, (1, 12)))
    (site,) = record.sites
    assert site.difference is None
    assert "no one product of all weights and values was seen" in site.unproved
    assert note_unproved([site]) == [f"not proved in layer 0: {site.unproved}"]


@pytest.mark.parametrize("wrong", [None, 0, 1, 3])
def test_a_layer_of_single_heads_is_as_wrong_as_the_worst_of_them(wrong):
    class Off(torch.overrides.TorchFunctionMode):
        calls = -1

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func.__name__ != "bmm" or result.shape[-1] != 4:
                return result
            self.calls += 1
            return result + 1 if self.calls == wrong else result

    torch.manual_seed(0)
    module = nn.Sequential(modules.ListedHeads()).eval()
    with torch.inference_mode(), Off(), recording(module) as record:
        module(torch.randn(2, 6, 16))
    (site,) = record.sites
    assert site.heads == 4
    assert site.differs == (wrong is not None)


def test_parts_of_which_one_is_not_proved_are_not_proved_unless_another_is_wrong():
    assert join_differences([1e-7, 3e-7], torch.float32) == 3e-7
    assert join_differences([1e-7, None], torch.float32) is None
    assert join_differences([0.5, None], torch.float32) == 0.5
    assert join_differences([None, None], torch.float32) is None
