"""The heads nearest to one, against loops over distances of eager attention."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from attnscope.attention import Head
from attnscope.errors import SelectionError
from attnscope.models import load
from attnscope.questions.compare import compare_all_heads
from attnscope.questions.nearest_heads import nearest_answer, nearest_heads
from tests.measures.rounding import near
from tests.models.folders import eager_minilm, minilm

TEXT = "The cat sat on the mat because it was tired."


def test_nearest_heads_agree_with_loops_over_eager_heads():
    model = load(minilm())
    result = nearest_heads(compare_all_heads(model, model.prepare(TEXT)), Head("L2H5"))
    maps = eager_minilm(TEXT)  # of each layer, [head, query, key]
    expected = {
        f"L{layer}H{head}": (jensenshannon(maps[2][5], maps[layer][head], axis=-1) ** 2).mean()
        for layer in range(6)
        for head in range(12)
        if (layer, head) != (2, 5)
    }
    assert len(result.others) == len(expected) == 71
    for pair in result.others:
        assert pair.one.name == "L2H5"
        assert pair.distance == near(expected[pair.other.name], "entropy", 13)
    distances = [pair.distance for pair in result.others]
    assert distances == sorted(distances)
    view, ranking = nearest_answer(result, "attnscope compare TEXT").views
    assert np.isnan(view.values[2, 5])  # a head has no distance from itself
    assert view.values[4, 7] == near(expected["L4H7"], "entropy", 13)
    first = result.others[0].other.name
    assert ranking.heads[0].command == f"attnscope compare TEXT L2H5 {first}"


def test_nearest_heads_refuse_a_head_that_was_not_compared(own):
    with pytest.raises(SelectionError, match="no head L9H0 among those compared: L0H0 to L3H7"):
        nearest_heads(compare_all_heads(own, own.prepare(TEXT)), Head("L9H0"))
