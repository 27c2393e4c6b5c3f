"""``--weigh zeroing`` over the families, against values that are really zero."""

import pytest
import torch

from attnscope.capture import recording
from attnscope.capture.projections import Projections
from attnscope.measures.weighing import STILL
from attnscope.models.inputs import ModelInput
from attnscope.models.weighed import weigh_model
from tests.capture.test_projections import ALL
from tests.capture.tiny import inputs, own_attentions
from tests.models.test_norm_residual import random_model

pytestmark = [pytest.mark.slow, pytest.mark.sweep]


class _Calls:
    """Keeps the rows and the values of every call."""

    def __init__(self):
        self.seen = []

    def observe(self, attention):
        self.seen.append((attention.site, attention.weights().clone(), attention.values.clone()))


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"gpt-oss"}))  # whose experts have no product in float64
@torch.no_grad()
def test_a_cell_is_how_far_the_output_of_a_head_turns_when_the_value_is_really_zero(name):
    model, given = random_model(name), inputs(ALL[name].inputs)
    model.module.double()
    given = {key: each.double() if each.is_floating_point() else each for key, each in given.items()}
    text, raw, shown, projections = ModelInput(given, {}, ()), _Calls(), _Calls(), Projections()
    with projections.watching(model.module), recording(model.module, [projections, raw]):
        model.module(**given)
    weigh_model(model, "zeroing").run(text, [shown])
    eager = ALL[name].build("eager").double()
    eager.load_state_dict(model.module.state_dict())
    own = {kind: iter(each) for kind, each in own_attentions(eager(**given, output_attentions=True)).items()}
    assert len(shown.seen) == len(raw.seen)
    for (site, rows, _), (_, _, values) in zip(shown.seen, raw.seen, strict=True):
        weights = next(own["self" if "self" in own else site.kind])
        projection = projections.found[site].weight.double()  # [head, size, width]
        values = values.repeat_interleave(len(projection) // values.shape[1], 1)
        whole = weights @ values @ projection
        turned = torch.zeros_like(weights)
        for key in range(weights.shape[-1]):
            without = values.clone()
            without[:, :, key] = 0
            turned[..., key] = 1 - torch.cosine_similarity(whole, weights @ without @ projection, dim=-1)
        turned = turned.where((turned > STILL) & (weights > 0), 0)  # less is not more than rounding
        total = turned.sum(-1, keepdim=True)
        assert (total > 0).double().mean() > 0.8
        torch.testing.assert_close(rows.double(), turned / total.where(total > 0, 1), atol=1e-6, rtol=0)
