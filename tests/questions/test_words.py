"""Figures beside a picture of words are those of the words."""

import numpy as np
import pytest

from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection

TEXT = "Unbelievable interpretability of tokenizers."


@pytest.fixture(scope="module")
def seen():
    model = load("own")
    return model, model.prepare(TEXT)


def test_a_heads_figures_speak_of_the_axes_of_its_picture(seen):
    found = one_head(*seen, Selection(words=True).of("L0H7"))
    shown = found.heatmap.weights.values  # [word, word]
    assert len(shown) == 7
    figures = {name: figure.value for name, figure in found.figures.figures.items()}
    assert figures["next"] == pytest.approx(np.diagonal(shown, 1).mean(), abs=1e-6)
    assert figures["self"] == pytest.approx(np.diagonal(shown).mean(), abs=1e-6)
    assert figures["first"] == pytest.approx(shown[1:, 0].mean(), abs=1e-6)
    assert "the figures count words, as the picture does" in found.heatmap.notes
    assert found.figures.name == "L0H7"


def test_all_heads_tell_the_same_of_words(seen):
    everything = all_heads(*seen, Selection(words=True))
    one = one_head(*seen, Selection(words=True).of("L2H3")).figures
    same = everything.figures["encoder", 2][3]
    assert same.name == one.name
    assert {name: each.value for name, each in same.figures.items()} == pytest.approx(
        {name: each.value for name, each in one.figures.items()}, abs=1e-6
    )


def test_where_special_tokens_are_hidden_the_figures_count_every_token_and_say_so(seen):
    hidden = one_head(*seen, Selection(words=True, hide_special=True).of("L0H7"))
    plain = one_head(*seen, Selection().of("L0H7"))
    assert hidden.figures.figures["next"] == plain.figures.figures["next"]
    assert "the figures count every token" in hidden.heatmap.notes
