"""What a model wrote is told apart in pictures, too."""

import pytest

from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.overview import overview
from attnscope.questions.selection import Selection
from attnscope.render.image.draw import drawing
from attnscope.render.image.sheet import LABEL_COLUMN, ROW


@pytest.fixture(scope="module")
def generated():
    model = load("own-causal")
    return model, model.generate(model.prepare("The king said that he would"), 8)


def test_the_tokens_that_a_model_wrote_are_bold(generated):
    view = one_head(*generated, Selection().of("L1H1")).heatmap
    with drawing(view) as (figure, _):
        labels = [text for text in figure.axes[0].texts if text.get_gid() in (ROW, LABEL_COLUMN)]
        bold = [text.get_fontweight() == "bold" for text in labels]
        assert bold == [place.start >= 7 for place in view.weights.queries] * 2
        assert any("bold tokens: written by the model" in text.get_text() for text in figure.texts)


def test_a_line_stands_above_the_columns_of_each_thumbnail_that_a_model_wrote(generated):
    view = overview(*generated, Selection()).grids["decoder"]
    with drawing(view) as (figure, _):
        (lines,) = figure.axes[0].collections
        spans = [path.vertices[:, 0] for path in lines.get_paths()]
        assert len(spans) == sum(layer.heads for layer in view.layers)
        for head, (start, stop) in enumerate(spans[: view.heads]):
            left, right = spans[0][0] + 0.5, spans[0][1] + 0.5
            assert left / right == pytest.approx(7 / 15)
            assert stop - start == pytest.approx(right - left)
            assert head == 0 or start > spans[head - 1][1]


def test_a_text_that_no_model_wrote_on_has_no_line():
    model = load("own-causal")
    view = overview(model, model.prepare("The king said"), Selection()).grids["decoder"]
    with drawing(view) as (figure, _):
        assert not figure.axes[0].collections
        assert not any("written" in text.get_text() for text in figure.texts)
