"""A role names the strongest pattern, or a weak one that other heads lack; random heads have none."""

import random
from itertools import product
from pathlib import Path

import pytest
import torch

from attnscope.attention import HeldRows, Site
from attnscope.measures import Measurement, role, settle_roles, worth_a_look
from attnscope.measures.roles import (
    BROAD_BAR,
    FEWEST_ROWS,
    LEAST_LIFT,
    NEAR_SHARE,
    PATTERNLESS,
    PATTERNS,
    SHARP_BAR,
    note_chance,
)
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.scores import HeadScores, Score
from tests.capture.tiny import tiny
from tests.measures.reference import shown


def scores_of(rows=20, chance=0.1, **scores):
    """Scores of so many rows, each a score beside chance, or a pair of both."""
    pairs = {"normalized_entropy": (0.5, 1.0)} | {
        name: score if isinstance(score, tuple) else (score, chance) for name, score in scores.items()
    }
    return {name: Score(*pair, rows, 1) for name, pair in pairs.items()}


NOTHING = "no clear role"
MOST = f"{NOTHING}; attends most of all to the"
AWAY, TWO_BACK = {"offset=-2": (0.8, 0.08)}, "attends 2 tokens back (0.80, baseline 0.08)"
NAMED = {  # scores, and the role with its sentence
    "just enough above chance": (scores_of(1000, previous=(0.5, 0.5 - LEAST_LIFT - 1e-9)), "previous"),
    "a little less": (scores_of(1000, previous=(0.5, 0.5 - LEAST_LIFT + 1e-6)), "none"),
    "enough rows": (scores_of(FEWEST_ROWS, 0.01, previous=1.0), "previous"),
    "one row too few": (scores_of(FEWEST_ROWS - 1, 0.01, previous=1.0), "none"),
    "a few rows of a middling score": (scores_of(6, induction=0.5), "none"),
    "more rows of it": (scores_of(60, induction=0.5), "induction"),
    "the first token before special ones": (scores_of(first=0.95, special=(0.97, 0.2)), "first"),
    "special ones that add to it": (scores_of(first=0.65, special=(0.95, 0.2)), "special"),
    "the greatest lift": (scores_of(previous=(0.8, 0.4), induction=0.7), "induction"),
    "an even head": (
        scores_of(normalized_entropy=(BROAD_BAR + 0.01, 1.0)),
        "broad",
        "spreads over all tokens (normalized entropy 0.91 of 1)",
    ),
    "a sentence with score and baseline": (
        scores_of(previous=(0.97, 0.12)),
        "previous",
        "attends to the previous token (0.97, baseline 0.12)",
    ),
    "what stands farthest above chance": (
        scores_of(previous=(0.45, 0.40), next=0.3, self=(0.2, 0.15)),
        "none",
        f"{MOST} next token (0.30, baseline 0.10)",
    ),
    "nothing": (scores_of(), "none", NOTHING),
    "nothing above chance": (scores_of(previous=0.1, next=(0.05, 0.3)), "none", NOTHING),
    "little of most rows": (scores_of(previous=(0.2, 0.05), confidence=(0.9, 0.2)), "none", NOTHING),
    "a distance that was measured": (scores_of(previous=(0.1, 0.08), **AWAY), "positional", TWO_BACK),
    "it beside much on the previous": (scores_of(previous=0.4, confidence=(0.85, 0.2), **AWAY), "positional"),
    "one token back by its other name": (scores_of(previous=0.9, **{"offset=-1": 0.9}), "previous"),
}


@pytest.mark.parametrize("case", NAMED)
def test_role_is_the_strongest_pattern(case):
    seen, name, *sentence = NAMED[case]
    found = role(seen)
    assert (found.name, [found.sentence][: len(sentence)]) == (name, sentence)


def test_role_is_assigned_from_its_threshold():
    for name, pattern in PATTERNS.items():
        for score, told in ((pattern.threshold, name), (pattern.threshold - 1e-6, "none")):
            assert role(scores_of(chance=0.05, **{name: score})).name == told


def test_nan_or_missing_scores_leave_no_role():
    assert role({}) is role(scores_of(previous=float("nan"))) is None


def test_suggested_heads_have_different_roles():
    scores = [{}, *({"first": 0.99 - n / 100} for n in range(1, 8)), {"previous": 0.6}, {"next": 0.7}]
    scores += [{"normalized_entropy": 0.95}, {"normalized_entropy": 0.2}, {"previous": 0.55}]
    heads = made([scores_of(**each) for each in scores])  # 0 and 11 have no pattern, and 10 is even
    assert [h.head for h in worth_a_look(heads)] == [1, 9, 8, 11, 2]
    assert [h.head for h in worth_a_look(heads, 100)] == [1, 9, 8, 11, 2, 12, 0, 3, 4, 5, 6, 7]
    apart = {heads[0].address: 1.9, heads[11].address: 0.1}  # 0 is farther from even rows, 11 from even ones
    assert [h.head for h in worth_a_look(heads, apart=lambda head: apart.get(head, 0))] == [1, 9, 8, 0, 2]
    assert [h.head for h in heads] == list(range(13))
    assert worth_a_look(heads, 0) == worth_a_look([], 3) == []


def test_suggested_heads_by_a_measure_are_far_from_their_baselines():
    nan = float("nan")
    heads = made([scores_of(offset=(each, 1)) for each in (0.5, -3.0, nan, 3.0, 1.1)] + [{}])
    assert [h.head for h in worth_a_look(heads, by="offset")] == [1, 3, 0, 4]
    assert [h.head for h in worth_a_look(heads, 2, by="offset")] == [1, 3]


def test_threshold_reached_in_too_few_rows_is_said():
    heads = made([scores_of(5, 0.11, induction=0.77), scores_of(5, 0.11, induction=0.97), scores_of()])
    assert [each.role and each.role.name for each in heads][:2] == ["none", "induction"]
    assert list(note_chance(heads, "induction")) == ["L0H0: 5 rows are too few to rule out chance"]
    assert heads[0].role.sentence.endswith("(0.77, baseline 0.11) in 5 rows, too few to rule out chance")
    assert not list(note_chance(heads, "previous"))


def test_role_has_the_values_of_its_pattern_or_spread():
    found = role(scores_of(normalized_entropy=(0.7, 0.9)) | {"duplicate": Score(0.7, 0.1, 7, 1)})
    assert (found.score, found.baseline, found.rows, found.lift) == (0.7, 0.1, 7, pytest.approx(0.6))
    assert found.sentence.startswith(
        "attends to other occurrences of the token in the 7 rows that have one (0.70, "
    )
    for spread, name in ((BROAD_BAR, "none"), (BROAD_BAR + 1e-9, "broad")):
        found = role(scores_of(normalized_entropy=(spread, 0.9)))
        assert (found.name, found.score, found.baseline, found.rows) == (name, spread, 0.9, 20)


SAMPLES = Path(__file__).parents[2] / "sample_inputs"


def plain(rows=100, **scores):
    """The scores of a head that does nothing much, but for some scores."""
    dull = {"previous": 0.02, "next": 0.02, "induction": 0.01, "first": 0.2, "confidence": 0.4}
    return scores_of(rows, 0.01, **dull | scores)


def made(heads):
    site = Site("layer", 0, "encoder", 0)
    return [HeadScores(site, number, each, {}, role(each)) for number, each in enumerate(heads)]


def last(heads):
    return settle_roles(made(heads))[-1].role


MANY = [plain() for _ in range(20)]
NEARLY = {name: NEAR_SHARE * PATTERNS[name].threshold for name in ("previous", "next", "induction")}
FAINT = {"offset=-2": 0.3}
AMONG = {  # the other heads of a model, one more, and its role with its sentence
    "a weak one among heads that do nothing like it": (
        [*MANY, plain(induction=0.35)],
        plain(induction=0.3),
        "weak induction",
        "weakly attends to what followed earlier occurrences of the token in the 100 rows that have one "
        "(0.30, baseline 0.01), 2nd strongest of 22 heads",
    ),
    "its like": ([plain(induction=0.3 + number / 100) for number in range(20)], plain(induction=0.3), "none"),
    "too little of the threshold": (MANY, plain(induction=0.09), "none"),
    "too few rows": (MANY, plain(rows=4, induction=0.15), "none"),
    "a shoulder of something else": (MANY, plain(previous=0.2, confidence=0.9), "none"),
    "a resting place": (MANY, plain(first=0.55), "none"),
    "baseline": (MANY, plain(previous=(0.3, 0.11)), "none"),
    "too few others": (MANY[:6], plain(previous=0.3), "none"),
    "as few as may be": (MANY[:7], plain(previous=0.3), "weak previous"),
    "two tokens back at 47": ([], plain(**{"offset=-2": (0.47, 0.02)}), "weak positional"),
    "two tokens back and a little one": (
        [plain(**{"offset=-2": (0.02, 0.01)})] * 20,
        plain(previous=0.2, **FAINT),
        "weak positional",
        "weakly attends 2 tokens back (0.30, baseline 0.01), strongest of 21 heads",
    ),
    "it where no other was asked for": (MANY, plain(previous=0.2, **FAINT), "none"),
    **{
        f"{name} near its threshold by {off}": (
            [plain(**{name: least + 0.01})] * 2,
            plain(**{name: least + off}),
            role_,
        )
        for name, least in NEARLY.items()
        for off, role_ in ((0.01, f"weak {name}"), (-0.01, "none"))
    },
}


@pytest.mark.parametrize("case", AMONG)
def test_weak_role_needs_contrast_or_a_near_miss(case):
    others, one, name, *sentence = AMONG[case]
    found = last([*others, one])
    assert (found.name, [found.sentence][: len(sentence)]) == (name, sentence)
    assert found.pattern == name.removeprefix("weak ")


@pytest.mark.parametrize(
    ("evenness", "name"), [(SHARP_BAR - 0.01, "sharp"), (SHARP_BAR, "none"), (0.95, "broad")]
)
def test_patternless_head_is_named_by_its_sharpness(evenness, name):
    found = last([*MANY[:9], plain(normalized_entropy=(evenness, 1))])
    assert (found.name, found.score) == (name, evenness)
    assert ("focused on few keys" in found.sentence) == (name == "sharp")


def test_bundled_induction_head_is_named_on_a_repeated_article():
    model = load("own-causal")
    text = (SAMPLES / "repeated.txt").read_text("utf-8")
    prepared = model.prepare(text, limit=Limit(truncate=True))
    seen = {head.name: head.role for head in measure_heads(model, prepared, Selection()).heads}
    named = {name: role.name for name, role in seen.items() if role and role.name not in PATTERNLESS}
    assert named == {"L1H0": "weak induction"}
    assert seen["L1H0"].score > 3 * seen["L1H0"].baseline


def heads_of(layers, tokens, causal):
    """The heads of layers' weights, each [1, head, query, key]."""
    measured, allowed = Measurement(), torch.ones(1, 1, len(tokens), len(tokens), dtype=torch.bool)
    for layer, weights in enumerate(layers):
        rows = HeldRows(weights, allowed.tril() if causal else allowed)
        measured.observe(shown(rows, weights.shape[:2], (tokens, tokens), layer=layer))
    return measured.scores()


@pytest.mark.parametrize("longest", [1, 3])
def test_true_induction_head_is_named_despite_common_words(longest):
    """It looks at what followed the ``longest`` last tokens earlier, evenly, and else at the first token."""
    model = load("own-causal")
    tokens = model.prepare((SAMPLES / "repeated.txt").read_text("utf-8"), limit=Limit(truncate=True)).tokens
    ids = [token.id for token in tokens]
    weights = torch.zeros(1, 1, len(ids), len(ids))
    for row in range(len(ids)):
        last = ids[row - longest + 1 : row + 1]
        same = [key for key in range(longest, row + 1) if ids[key - longest : key] == last] or [0]
        weights[0, 0, row, same] = 1 / len(same)
    (head,) = heads_of([weights], tokens, causal=True)
    assert head.role.name == "induction"
    assert head.scores["induction"].baseline < 0.05


def rest(first=0.9, chance=1 / 12, **others):
    return scores_of(
        12, chance, **{"first": first, "confidence": (0.9, 0.1), "normalized_entropy": (0.2, 1.0)} | others
    )


def test_sink_of_one_head_among_many_on_short_text_is_no_role():
    found = last([rest(0.1)] * 20 + [rest()])
    assert (found.name, found.score, found.baseline) == ("sharp", 0.2, 1.0)
    assert found.sentence == f"{MOST} first token (0.90, baseline 0.08), as heads may by chance"


SPREAD = rest(0.1, 0.02, confidence=(0.3, 0.1))
RESTING = {  # the heads of a model, and the role of the last
    # of 21 heads each at 1/12, five or more are there in 3 of a hundred models, four or more in 9
    "as many as chance puts there": ([rest(0.1)] * 17 + [rest()] * 4, "sharp"),
    "more than chance puts there": ([rest(0.1)] * 16 + [rest()] * 5, "first"),
    "one on a long text": ([rest(0.1, 1 / 200)] * 71 + [rest(0.9, 1 / 200)], "first"),
    "one on a shorter text": ([rest(0.1, 1 / 50)] * 71 + [rest(0.9, 1 / 50)], "sharp"),
    "others that could not rest anywhere": ([SPREAD] * 20 + [rest(0.9, 0.02)], "first"),
    "others that could": ([rest(0.1, 0.02)] * 20 + [rest(0.9, 0.02)], "sharp"),
    "too few heads to doubt": ([rest(0.1)] * 6 + [rest()], "first"),
    "a doubtful place beside a sure one": (
        [rest(0.1, special=(0.8, 0.2))] * 20 + [rest(special=(0.95, 0.2))],
        "special",
    ),
}


@pytest.mark.parametrize(("heads", "name"), RESTING.values(), ids=RESTING)
def test_sink_is_a_role_when_too_many_heads_for_chance(heads, name):
    assert last(heads).name == name


def random_net(causal, sharp):
    """A model of 42 heads a layer, its weights drawn ``sharp`` wide: 0.02 is how models are begun."""
    sizes = {"hidden_size": 252, "num_attention_heads": 42, "num_hidden_layers": 2, "intermediate_size": 256}
    sizes |= {"vocab_size": 31000, "max_position_embeddings": 2048, "initializer_range": sharp}
    return tiny("GPT2" if causal else "Bert", **sizes).build("eager")


def roles_of(net, tokens, causal):
    """The roles of all heads."""
    with torch.inference_mode():
        layers = net(torch.tensor([[token.id for token in tokens]]), output_attentions=True).attentions
    return [
        each.role.name for each in settle_roles(heads_of(layers, tokens, causal)) if each.role is not None
    ]


def texts_of(size):
    """Prose, prose that repeats itself, and six words at random, each of so many tokens."""
    read = load("own-causal")
    few = random.Random(size).choices(["cat", "dog", "sat", "the", "on", "."], k=300)
    texts = *((SAMPLES / f"{name}.txt").read_text("utf-8") for name in ("article", "repeated")), " ".join(few)
    made = [read.prepare(text, limit=Limit(truncate=True)).tokens for text in texts]
    whole = [[*(tokens[1:-1] * 8)[: size - 2]] for tokens in made]
    return [(tokens[0], *inner, tokens[-1]) for tokens, inner in zip(made, whole, strict=True)]


MARKS = {12: [], 2048: [pytest.mark.slow, pytest.mark.nightly]}
SIZES = product((8, 20, 64, 200), (0.02, 0.1, 0.3), (False, True))
SWEEP = [(12, 0.3, False), *SIZES, (2048, 0.3, False), (2048, 0.3, True)]


@pytest.mark.parametrize(
    ("size", "sharp", "causal"),
    [pytest.param(*each, marks=MARKS.get(each[0], [pytest.mark.slow])) for each in SWEEP],
)
@pytest.mark.sweep
def test_random_heads_have_no_role_at_any_text_length(size, sharp, causal):
    """Fifteen times as wide as models are begun a row looks at one key."""
    net = random_net(causal, sharp)
    texts = texts_of(size)[0 if size < 2048 else 2 :]  # the longest once, of words that repeat
    names = [name for tokens in texts for name in roles_of(net, tokens, causal)]
    assert len(names) == 84 * len(texts)
    assert sum(name not in PATTERNLESS for name in names) <= len(names) / 100
