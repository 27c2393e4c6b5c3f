"""Models for interventions."""

import pytest
import torch

from attnscope.models import load
from tests.questions.intervention.shapes import SHAPES, gpt2, saved


@pytest.fixture(scope="module", params=[name for name in SHAPES if name not in ("bart", "falcon")])
def shaped(request, tmp_path_factory):
    """A tiny random model of a shape, in float64."""
    made = SHAPES[request.param](tmp_path_factory.mktemp(request.param), request.param)
    for module in list(made.model.writer.modules()):
        for name, part in list(module.named_children()):
            if hasattr(part, "variance_epsilon"):  # it rounds to float32 in every model; torch's does not
                setattr(module, name, torch.nn.RMSNorm(part.weight.shape, part.variance_epsilon))
    made.model.writer.double()
    for prepared in (made.clean, made.corrupt):
        pixels = prepared.inputs.get("pixel_values")
        if pixels is not None:
            prepared.inputs["pixel_values"] = pixels.double()
    return made


@pytest.fixture(scope="module", params=["own", "own-causal", "bert", "gpt2", "starcoder2"])
def model(request, tmp_path_factory):
    """Models that predict hidden tokens and models that predict the next one, in float64."""
    name = request.param
    if not name.startswith("own"):
        folder = tmp_path_factory.mktemp(name)
        name = gpt2(folder) if name == "gpt2" else saved(folder, name)
    model = load(name, predicting=True)
    (getattr(model, "writer", None) or model.module).double()
    return model
