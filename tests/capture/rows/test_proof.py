"""Weights are held against what the kernel returned; what differs is said, and never trusted."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnscope.analysis.sentences import provenance
from attnscope.capture import FUSED, recording
from attnscope.fused.fused_pass import FusedPass
from tests.capture.tiny import FAMILIES, inputs


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5", "gpt-oss"])
def test_every_call_of_a_model_is_proved(family):
    model = FAMILIES[family].build()
    with torch.inference_mode(), recording(model) as record:
        model(**inputs(FAMILIES[family].inputs))
    assert record.sites
    assert all(site.difference is not None and site.difference < 1e-5 for site in record.sites)
    assert not any(site.differs for site in record.sites)


@pytest.mark.parametrize(
    "options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 8, "vdim": 8}]
)
def test_torchs_own_attention_module_is_proved_through_its_output_projection(options):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=True, **options).eval()
    states = torch.randn(2, 7, 16)
    other = torch.randn(2, 7, 8) if "kdim" in options else states
    with torch.inference_mode(), recording(module) as record:
        module(states, other, other, need_weights=False)
    (site,) = record.sites
    assert site.difference is not None
    assert site.difference < 1e-5


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
    assert site.refusal is not None
    assert "rows of its output differ from their formula by 0.0" in site.refusal
