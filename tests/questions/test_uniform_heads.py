"""A model all of whose heads attend nearly uniformly: what is named, in which order, and beside what."""

from dataclasses import replace

import pytest

from attnscope.models import load
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, measure_maps, overview, overview_answer, score_table
from tests.models.folders import gpt2

TEXT = "the cat sat on the mat and the dog sat on the other mat by it"


@pytest.fixture(scope="module")
def uniform(tmp_path_factory):
    model = load(gpt2(tmp_path_factory.mktemp("uniform") / "gpt2", n_head=2, n_layer=3))
    return model, model.prepare(TEXT)


def test_overview_without_patterns_names_lowest_entropy(uniform):
    result = overview(*uniform, Selection())
    ranking = overview_answer(result, "attnscope show").views[-1]
    entropy = {head.name: head.scores["entropy"].value for head in result.heads}
    assert [each.head for each in ranking.heads] == sorted(entropy, key=entropy.get)[:3]
    assert (ranking.title, "--by entropy maps all heads" in ranking.notes[0]) == ("Least uniform", True)
    assert ranking.heads[0].command.endswith(f"--head {ranking.heads[0].head}")


def test_map_of_a_measure_lists_heads_farthest_from_baseline(uniform):
    ranking = overview_answer(overview(*uniform, Selection(), by="entropy"), None).views[-1]
    assert ranking.title == "Farthest from uniform attention in entropy"
    result = measure_heads(*uniform, Selection())
    entropy = {head.name: head.scores["entropy"].value for head in result.heads}
    assert [each.head for each in ranking.heads] == sorted(entropy, key=entropy.get)[:5]


def test_table_without_patterns_begins_least_uniform(uniform):
    result = measure_heads(*uniform, Selection())
    heads = result.meeting(())
    assert "least uniform first: none shows a clear pattern" in score_table(result, heads).notes[0]
    named = [replace(heads[0], role=replace(heads[0].role, name="previous")), *heads[1:]]
    assert "clearest role first" in score_table(result, named).notes[0]


def test_bar_of_a_narrow_range_names_uniform_attention(uniform):
    result = measure_heads(*uniform, Selection())
    (entropy,) = measure_maps(result, "entropy").values()
    assert entropy.bar.startswith("entropy, nats; uniform attention: ")
    spread = replace(result.heads[0].scores["entropy"], value=0.1)
    far = replace(result.heads[0], scores={**result.heads[0].scores, "entropy": spread})
    (wide,) = measure_maps(replace(result, heads=(far, *result.heads[1:])), "entropy").values()
    assert wide.bar == "entropy, nats"
