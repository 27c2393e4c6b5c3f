"""Averages over the prompts of a template."""

import numpy as np
import pytest

from attnscope.attention import Head
from attnscope.errors import InputError, SelectionError
from attnscope.questions.cause import average_effects, cut
from attnscope.questions.find import parse_questions
from attnscope.questions.head import one_head
from attnscope.questions.logits import direct_effects, logit_lens
from attnscope.questions.prompts import (
    Prompt,
    mean_cut,
    mean_head,
    mean_lens,
    mean_maps,
    mean_writes,
    read_prompts,
)
from attnscope.questions.selection import Selection

TEMPLATE = "The {A} saw the {B} and the {A} saw the"
TABLE = "A\tB\tC\nking\tqueen\tman\nhouse\triver\tgarden\nhorse\ttable\tdoor\n"


def test_prompt_rows_fill_slots_of_text_and_targets():
    found = read_prompts(TEMPLATE, TABLE, "{B}", "door")
    slots = (("{A}", 4, 9), ("{B}", 18, 23), ("{A}", 32, 37))
    assert found[1][:4] == ("The house saw the river and the house saw the", "river", "door", slots)
    assert [each.target for each in found] == ["queen", "river", "table"]
    commas = TABLE.replace("\t", ", ").replace("queen", '"the queen, too"')
    assert read_prompts(TEMPLATE, commas)[0].text.startswith("The king saw the the queen, too and")


@pytest.mark.parametrize(
    ("template", "table", "sentence"),
    [
        ("no slot", TABLE, "has no slot"),
        ("{A} {D}", TABLE, "no column 'D' in the file: it has A, B, C"),
        ("{A} {B}", "A\tB\nking\n", "line 2 of the file has no B"),
        ("{A}", "A\tB\n", "no rows below"),
        ("{A}", "", "no rows below"),
    ],
)
def test_unfillable_prompt_is_refused(template, table, sentence):
    with pytest.raises(InputError, match=sentence):
        read_prompts(template, table)


def test_mean_effects_equal_prompts_one_by_one(causal):
    prompts = read_prompts(TEMPLATE, TABLE, "{B}", "{C}")
    asked = [(causal, causal.prepare(each.text), each.target, each.against) for each in prompts]
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


def test_mean_map_of_prompts_merges_slot_tokens(causal):
    table = "A\nking\nunhappiest\n"  # of one token, and of several
    prompts = read_prompts("The {A} saw it", table)
    texts = [(prompt, causal.prepare(prompt.text)) for prompt in prompts]
    seen = mean_head(causal, texts, "The {A} saw it", Selection().of("L1H2"))
    assert seen.keys == ["[CLS]", "The", "{A}", "saw", "it", "[SEP]"]
    maps = []
    for _, prepared in texts:
        values = np.array(one_head(causal, prepared, "L1H2").heatmap.values, float)
        of = [0, 1, *([2] * (len(prepared.tokens) - 5)), 3, 4, 5]
        keys = np.stack([values[:, np.equal(of, place)].sum(1) for place in range(6)], 1)
        maps.append(np.stack([keys[np.equal(of, place)].mean(0) for place in range(6)]))
    assert len({len(prepared.tokens) for _, prepared in texts}) == 2
    assert seen.heatmap.values == pytest.approx(np.mean(maps, 0), abs=1e-6)
    alone = [one_head(causal, prepared, "L1H2").scores.scores["first"].value for _, prepared in texts]
    assert seen.scores.scores["first"].value == pytest.approx(np.mean(alone))
    assert seen.scores.scores["first"].error == pytest.approx(abs(alone[0] - alone[1]) / 2)


def test_mean_map_refuses_prompts_with_other_tokens(causal):
    prompts = [Prompt("The cat sat", None, None), Prompt("The dog sat down", None, None)]
    with pytest.raises(SelectionError, match="prompt 2 has other tokens"):
        mean_head(causal, [(each, causal.prepare(each.text)) for each in prompts], "", Selection().of("L1H2"))


def test_mean_maps_are_of_all_prompts_or_say_why_not(causal):
    prompts = read_prompts("The {A} saw it", "A\nking\nqueen\ncat\n")
    texts = [(prompt, causal.prepare(prompt.text)) for prompt in prompts]
    head = Head("L1H2")
    maps, notes = mean_maps(causal, texts, "The {A} saw it", [head])
    alone = [np.array(one_head(causal, prepared, head).heatmap.values, float) for _, prepared in texts]
    assert np.abs(alone[0] - np.mean(alone, 0)).max() > 1e-3
    assert maps[head].values == pytest.approx(np.mean(alone, 0), abs=1e-6)
    assert "mean of 3 prompts of “The {A} saw it”" in maps[head].title
    assert not notes
    others = [
        (each, causal.prepare(each.text)) for each in (prompts[0], prompts[1]._replace(text="The queen sat"))
    ]
    maps, (note,) = mean_maps(causal, others, "The {A} saw it", [head])
    assert not maps
    assert note.startswith("the page has no maps: prompt 2 has other tokens")


def test_cut_over_prompts_fills_slots_in_edges(causal):
    prompts = read_prompts("The {A} saw the {B} and the", TABLE, "{A}", "{B}")
    alone = []
    for each in prompts:
        question = parse_questions(each.fill("{B} -> {A}"))
        words = {"target": each.target, "against": each.against}
        alone.append(cut(causal, causal.prepare(each.text), question, **words))
    assert len({each.changed for each in alone}) == 3
    asked = causal.prepare, "The {A}", parse_questions("{B} -> {A}")
    found = mean_cut(causal, prompts, *asked)
    assert found.heads == average_effects(alone, "", "").heads
    assert found.score == pytest.approx(np.mean([each.score for each in alone]))
    wrong = [prompts[0], prompts[1]._replace(target="qqqqq")]
    with pytest.raises(SelectionError, match=r"^prompt 2: no token 'qqqqq'"):
        mean_cut(causal, wrong, *asked)
