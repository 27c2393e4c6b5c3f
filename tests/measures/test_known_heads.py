"""Known heads: hand-written ones, and properties of those of a trained encoder."""

import numpy as np
import pytest

from attnscope.measures import Measurement, worth_a_look
from attnscope.models import load
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, overview, overview_answer
from tests.capture.observing import MapObserver
from tests.models.folders import eager_minilm, minilm
from tests.questions import planted


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_planted_heads_get_their_roles_on_words_and_random_tokens(seed, monkeypatch):
    monkeypatch.setattr(planted, "SHARP", 60.0)
    module = planted.Planted(heads=2, noise=0, length=34)
    module.plant_induction((0, 0), (1, 0))
    module.plant_copy((0, 1), 0)
    module.plant_back((1, 1), 0, module.out)
    model = planted.wrap_planted(module)
    text = "? " + "fig dew ash kit bay hop elm jay cod ivy gum " * 3
    prepared = model.prepare(text) if seed is None else model.repeat_random(11, seed)
    seen = {head.name: head.role for head in measure_heads(model, prepared, Selection()).heads}
    roles = {"L0H0": "previous", "L0H1": "first", "L1H0": "induction", "L1H1": "self"}
    assert {name: role.name for name, role in seen.items()} == roles
    shared = (
        0 if seed is None else 1 / 22
    )  # of one word in eleven, which is first: it stands before itself, too
    assert [role.score for role in seen.values()] == pytest.approx([1, 1, 1 - shared, 1], abs=1e-5)


def test_content_heads_are_suggested_and_uniform_heads_are_not():
    module = planted.Planted(layers=1, heads=3, noise=0)  # the first head's attention is even
    module.plant_copy((0, 1), 2)
    query, key = module.match()
    words = np.random.default_rng(1).permutation(range(1, module.ids))
    query[range(1, module.ids), range(1, module.ids)] = key[range(1, module.ids), words] = 1
    module.plant((0, 2), query, key, module.out)
    model, keep = planted.wrap_planted(module), MapObserver()
    prepared = model.prepare(" ".join(planted.WORDS))
    seen = overview(model, prepared, Selection())
    assert [head.role.name for head in seen.heads] == ["broad", "sharp", "none"]
    ranking = overview_answer(seen, "look").views[-1]
    assert [each.head for each in ranking.heads] == ["L0H2", "L0H1"]
    model.run(prepared, [keep])
    for head, maps in enumerate(keep.maps[0].weights[0].double().numpy()):
        mean = maps.mean(0)
        apart = sum(a * np.log(a / mean[at]) for row in maps for at, a in enumerate(row) if a) / len(maps)
        assert seen.apart(seen.heads[head].address) == pytest.approx(apart, abs=1e-6)
    assert "focus 89% (0%: uniform, 100%: one key); its tokens attend to different" in ranking.heads[1].reason
    table = measure_heads(model, prepared, Selection()).meeting([])
    assert [head.head for head in table] == [1, 2, 0]


@pytest.mark.parametrize("seed", range(3))
def test_induction_of_repeated_tokens_counts_the_second_half(seed, run):
    answer = run.json("stats", "--repeat-random", 8, "--seed", seed, "-m", "own-causal")
    assert any("induction is measured on the second half" in note for note in answer["notes"])
    model, keep = load("own-causal"), MapObserver()
    model.run(model.repeat_random(8, seed), [keep])
    for head in answer["heads"]:
        weights = keep.maps[head["layer"]].weights[0, head["head"], 9:17]  # behind [CLS] and the first half
        looked = weights.diagonal(2).mean().item()
        assert head["scores"]["induction"]["value"] == pytest.approx(looked, abs=1e-6)


SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "She gave the book to her brother yesterday.",
    "Water boils at one hundred degrees Celsius.",
    "The old bridge collapsed after the heavy storm.",
    "We walked along the river until it was dark.",
    "Trains from the north are late again this morning.",
)


def test_half_of_minilm_heads_attend_to_cls():
    """One looks at the previous token nearly always, one at the next."""
    model, observer, on_first, rows = load(minilm()), Measurement(), 0.0, 0
    for sentence in SENTENCES:
        model.run(model.prepare(sentence), [observer])
        weights = eager_minilm(sentence)  # [layer, head, query, key]
        on_first, rows = on_first + weights[:, :, 1:, 0].sum(-1, dtype=float), rows + weights.shape[2] - 1
    heads, on_first = {head.name: head for head in observer.scores()}, on_first / rows
    for head in heads.values():
        assert head.scores["first"].value == pytest.approx(on_first[head.site.layer, head.head], abs=1e-6)
    assert 30 <= (on_first > 0.5).sum() <= 40
    assert (heads["L0H2"].role.name, heads["L1H8"].role.name) == ("previous", "next")
    assert heads["L0H2"].role.score > 0.995
    assert heads["L1H8"].role.score == pytest.approx(0.59, abs=0.02)
    best = worth_a_look(heads.values(), 4)
    assert {head.role.name for head in best} == {"previous", "next", "first", "special"}
    assert best[0].name == "L0H2"
