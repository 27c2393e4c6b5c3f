"""Averages over the prompts of a template."""

import numpy as np
import pytest

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.lens import logit_lens
from attnscope.questions.logits import direct_effects
from attnscope.questions.prompts import Prompt, mean_lens, mean_writes, read_prompts

TEMPLATE = "The {A} saw the {B} and the {A} saw the"
TABLE = "A\tB\tC\nking\tqueen\tman\nhouse\triver\tgarden\nhorse\ttable\tdoor\n"


def test_rows_fill_the_slots_of_the_text_and_of_both_words():
    found = read_prompts(TEMPLATE, TABLE, "{B}", "door")
    assert found[1] == Prompt("The house saw the river and the house saw the", "river", "door")
    assert [each.target for each in found] == ["queen", "river", "table"]
    commas = TABLE.replace("\t", ", ").replace("queen", '"the queen, too"')
    assert read_prompts(TEMPLATE, commas)[0].text.startswith("The king saw the the queen, too and")


@pytest.mark.parametrize(
    ("template", "table", "sentence"),
    [
        ("no slot", TABLE, "has no slot"),
        ("{A} {D}", TABLE, "no column 'D' in the file: it has A, B, C"),
        ("{A} {B}", "A\tB\nking\n", "line 2 of the file has no B"),
        ("{A}", "A\tB\n", "no line below"),
        ("{A}", "", "no line below"),
    ],
)
def test_what_cannot_be_filled_is_said(template, table, sentence):
    with pytest.raises(InputError, match=sentence):
        read_prompts(template, table)


def test_means_are_those_of_the_prompts_one_by_one():
    model = load("own-causal")
    prompts = read_prompts(TEMPLATE, TABLE, "{B}", "{C}")
    asked = [(model, model.prepare(each.text), each.target, each.against) for each in prompts]
    alone = [direct_effects(*each) for each in asked]
    mean = mean_writes(alone, TEMPLATE)
    assert len(mean.heads) == 12
    for each in mean.heads:
        values = [one.effects.heads[each.head] for one in alone]
        assert each.effect == pytest.approx(np.mean(values))
        assert each.error == pytest.approx(np.std(values, ddof=1) / 3**0.5)
    assert mean.score == pytest.approx(np.mean([one.score for one in alone]))
    assert mean.effects.total == pytest.approx(mean.score, abs=1e-4)
    lenses = [logit_lens(*each) for each in asked]
    for number, each in enumerate(mean_lens(lenses, TEMPLATE).layers):
        layers = [one.layers[number] for one in lenses]
        for name in ("rank", "log_probability", "difference"):
            assert getattr(each, name) == pytest.approx(np.mean([getattr(one, name) for one in layers]))
