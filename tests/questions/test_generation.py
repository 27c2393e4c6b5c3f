"""Views of a generated text against one uncached eager pass over all of it."""

import numpy as np
import pytest
import torch

from attnscope.attention import Head
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.layers import whole_layers
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.questions.token import one_token
from tests.models.folders import eager
from tests.models.test_generation import DECODERS, writer_folder

TEXT = "The cat sat on the mat"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A sliding window, a text that it wrote on, its own attention.  [layer, head, query, key]"""
    folder = writer_folder(tmp_path_factory.mktemp("gemma3"), DECODERS["gemma3"]())
    model = load(folder, generative=True)
    text = model.generate(model.prepare(TEXT), 9)
    out = eager(folder, input_ids=text.inputs["input_ids"], use_cache=False)
    return model, text, torch.cat(out.attentions).numpy()


def test_a_head_and_its_figures_are_over_all_rows(seen):
    model, text, eager = seen
    head = one_head(model, text, "L1H2")
    np.testing.assert_allclose(head.heatmap.values, eager[1, 2], atol=1e-5)
    assert [place.text for place in head.heatmap.weights.keys] == [token.text for token in text.tokens]
    rows = eager[1, 2]
    previous = head.figures.figures["previous"]
    assert previous.value == pytest.approx(np.diag(rows, -1).mean(), abs=1e-5)
    assert previous.rows == len(rows) - 1
    confidence = head.figures.figures["confidence"]
    assert confidence.value == pytest.approx(rows[1:].max(1).mean(), abs=1e-5)


def test_a_generated_token_looks_back_and_the_window_closes_behind_it(seen):
    model, text, eager = seen
    last = len(text.tokens) - 1
    focus = one_token(model, text, Selection(Head("L0H1"), token=str(last)))
    assert {bar.position for bar in focus.looks_at.bars} == set(range(last - 3, last + 1))
    for bar in focus.looks_at.bars:
        assert bar.weight == pytest.approx(eager[0, 1, last, bar.position], abs=1e-5)


def test_layers_and_figures_of_all_heads_come_from_the_same_replay(seen):
    model, text, eager = seen
    layers = dict(whole_layers(model, text, Selection()).kinds["decoder"])
    np.testing.assert_allclose(layers[2].values, eager[2], atol=1e-5)
    found = measure_heads(model, text, Selection(layers=(2,))).heads
    assert [head.head for head in found] == [0, 1, 2, 3]
    for head in found:
        first = head.figures["first"]
        assert first.value == pytest.approx(eager[2, head.head, 1:, 0].mean(), abs=1e-5)
