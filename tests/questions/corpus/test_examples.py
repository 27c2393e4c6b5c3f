"""Kept rows of a corpus equal those of a loop over eager weights, however read, stopped or shared."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

import attnscope
from attnscope.attention import Head
from attnscope.errors import InputError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.examples import (
    BY_WEIGHT,
    Example,
    ExampleRow,
    _spell_order,
    context_cell,
    corpus_examples,
    examples_answer,
    find_deciles,
)
from attnscope.questions.examples_reading import (
    BINS,
    EDGES,
    MOST_KEYS,
    MOST_ROWS,
    ExampleRows,
    bin_edges,
    draw_ranks,
    find_bins,
    rank_scores,
)
from attnscope.records import plain
from attnscope.storage.corpus import ListedTexts
from attnscope.views.charts import Bar
from tests.models.folders import LINES, gpt2, t5

WORDS = " ".join(LINES).replace(".", "").replace(",", "").split()
ROUNDING = 1e-5  # of a weight in float32, of 30 keys and a pass of two layers


def sentences(count, seed=0, most=14):
    """Random texts."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, most))) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny causal model."""
    torch.manual_seed(0)
    return load(gpt2(tmp_path_factory.mktemp("gpt2"), initializer_range=0.6))


def eager_rows(model, texts):
    """Each row of each text: its number, its token's number, the ids, and the weights of all heads."""
    module = transformers.AutoModel.from_pretrained(model.name, attn_implementation="eager").eval()
    for number, text in enumerate(texts, 1):
        ids = [token.id for token in model.prepare(text).tokens]
        with torch.no_grad():
            weights = module(torch.tensor([ids]), output_attentions=True).attentions
        maps = torch.cat(weights).double().numpy()  # [layer, head, row, key]
        for row in range(len(ids)):
            yield number, row, ids, maps[:, :, row]


def beyond_habit(row, weights):
    """The largest weight of a row outside its own and the first token; ``None`` without such a key."""
    others = [weights[key] for key in range(1, row)]
    return max(others, default=None)


@pytest.fixture(scope="module")
def texts():
    """A corpus."""
    return sentences(500)


@pytest.fixture(scope="module")
def rows(model, texts):
    """All its rows."""
    return list(eager_rows(model, texts))


@pytest.fixture(scope="module")
def result(model, texts):
    """All that is kept of it."""
    return corpus_examples(model, ListedTexts(texts), top=MOST_ROWS)


def scored(rows, head, score=beyond_habit):
    """The score of each row that counts, and its place."""
    found = {(number, row): score(row, weights[head]) for number, row, _, weights in rows}
    return {place: value for place, value in found.items() if value is not None}


def assert_top(heads, rows, score=beyond_habit):
    """The strongest rows of each head are those of a loop, up to rounding."""
    for each in heads:
        scores = scored(rows, (each.head.layer, each.head.head), score)
        best = sorted(scores.values(), reverse=True)[:MOST_ROWS]
        assert [row.score for row in each.top] == pytest.approx(best, abs=ROUNDING)
        places = [(int(row.text.split()[1]), row.position) for row in each.top]
        assert len({*places}) == len(places)
        for row, place in zip(each.top, places, strict=True):
            assert row.score == pytest.approx(scores[place], abs=ROUNDING)


def test_strongest_rows_equal_those_of_a_loop_over_eager_weights(result, rows):
    assert [each.head.name for each in result.heads] == [
        f"L{layer}H{head}" for layer in (0, 1) for head in range(4)
    ]
    assert_top(result.heads, rows)


def test_heaviest_keys_of_a_row_are_those_of_its_eager_weights(result, rows):
    weights = {(number, row): heads for number, row, _, heads in rows}
    for each in result.heads:
        for row in each.top[:20]:
            eager = weights[int(row.text.split()[1]), row.position][each.head.layer, each.head.head]
            best = np.sort(eager)[::-1][:MOST_KEYS]
            assert [key.weight for key in row.keys] == pytest.approx(best.tolist(), abs=ROUNDING)
            assert [key.weight for key in row.keys] == pytest.approx(
                [eager[key.position] for key in row.keys], abs=ROUNDING
            )


def draw(text, row):
    """The random rank of a row, lowbias32 by its definition on Python's integers."""
    number = (text * 0x9E3779B1 + row * 0x85EBCA77) % (1 << 32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        number = (number ^ number >> shift) * factor % (1 << 32)
    return number


def slack(score):
    """How much too far out the end of a tenth may be."""
    return max(abs(score) / 64, 2**-10) + ROUNDING


def assert_tenths(head, scores):
    """Each tenth has the ends of its rows, and random rows of its own."""
    ordered, drawn = sorted(scores.values(), reverse=True), {place: draw(*place) for place in scores}
    sample = {*sorted(drawn, key=drawn.get)[:MOST_ROWS]}
    ends = np.round(np.linspace(0, len(ordered), 11)).astype(int)
    for tenth, (first, last) in zip(head.deciles, pairwise(ends), strict=True):
        most, least = ordered[first], ordered[last - 1]
        assert least - slack(least) <= tenth.lowest <= least + ROUNDING
        assert most - ROUNDING <= tenth.highest <= most + slack(most)
        for row in tenth.rows:
            assert tenth.lowest - ROUNDING <= row.score <= tenth.highest + ROUNDING
            assert (int(row.text.split()[1]), row.position) in sample
    assert sum(len(tenth.rows) > 0 for tenth in head.deciles) == 10


def test_tenths_are_those_of_all_rows_of_a_loop(result, rows):
    for each in result.heads:
        assert_tenths(each, scored(rows, (each.head.layer, each.head.head)))


def test_tenths_of_equal_scores_share_their_rows():
    scores = np.random.default_rng(0).choice([1.0, 0.25, 0.0, -2.0], 4000, p=[0.45, 0.15, 0.3, 0.1])
    counts = torch.bincount(find_bins(torch.from_numpy(scores)), minlength=len(bin_edges()) - 1)
    sample = [ExampleRow(float(score), text, 0, []) for text, score in enumerate(scores[:100])]
    ordered = np.sort(scores)[::-1]
    for number, (low, high, rows) in enumerate(find_deciles(sample, counts.double().numpy(), 1.0)):
        part = ordered[400 * number : 400 * (number + 1)]
        assert part[-1] - slack(part[-1]) <= low <= part[-1]
        assert part[0] <= high <= part[0] + slack(part[0])
        assert len(rows) == 2
        assert all(low <= row.score <= high for row in rows)


def test_bin_of_a_score_lies_between_its_edges():
    scores = torch.tensor([-131071.0, -3.5, -1e-9, 0.0, 1e-30, 0.001, 0.0999, 0.5, 1.0, 1.02, 130000.0])
    found, edges = find_bins(scores).numpy(), bin_edges()
    assert np.all(np.diff(edges) > 0)
    assert np.all((edges[found] <= scores.numpy()) & (scores.numpy() <= edges[found + 1]))
    assert edges[find_bins(torch.tensor(1.0))] == 1.0


def test_histograms_equal_those_of_a_loop(result, rows):
    for each in result.heads:
        head = each.head.layer, each.head.head
        weights, gaps, entropies = list(scored(rows, head).values()), np.zeros(len(EDGES) + 1), []
        for _, row, _, maps in rows:
            for key, weight in enumerate(maps[head]):
                gaps[sum(edge <= key - row for edge in EDGES)] += weight
            if row:
                p = maps[head][: row + 1]
                entropies.append(-(p[p > 0] * np.log(p[p > 0])).sum() / np.log(row + 1))
        assert each.distances.shares == pytest.approx(gaps / gaps.sum(), abs=ROUNDING)
        for found, values in ((each.weights, weights), (each.entropy, entropies)):
            expected = np.histogram(np.clip(values, 0, 1), BINS, (0, 1))[0]
            assert np.array(found.shares) * len(values) == pytest.approx(expected, abs=1)  # one on an edge


def test_tokens_of_strongest_rows_are_counted_beside_the_corpus(model, result, rows):
    ids = {(number, row): (tokens, maps) for number, row, tokens, maps in rows}
    corpus = Counter(tokens[row] for _, row, tokens, _ in rows)
    names = {token.id: token.text for text in sentences(500) for token in model.prepare(text).tokens}
    for each in result.heads:
        found = Counter()
        for row in each.top:
            tokens, maps = ids[int(row.text.split()[1]), row.position]
            best = 1 + int(np.argmax(maps[each.head.layer, each.head.head][1 : row.position]))
            found[tokens[row.position], tokens[best]] += 1
        best = found.most_common(1)[0][1]
        assert each.pairs[0].count == best
        first = next(
            pair
            for pair, count in found.items()
            if count == best and tuple(names[id_].strip() for id_ in pair) == each.pairs[0].tokens
        )
        share = [corpus[id_] / corpus.total() for id_ in first]
        assert each.pairs[0].expected == pytest.approx(share[0] * share[1], rel=1e-12)
        assert each.pairs[0].share == best / MOST_ROWS


def test_nearest_heads_share_most_weight_on_sampled_rows(result, rows):
    drawn = {(n, row): draw(n, row) for n, row, *_ in rows if row > 1}
    sample = {*sorted(drawn, key=drawn.get)[:MOST_ROWS]}
    maps = [weights.reshape(8, -1) for number, row, _, weights in rows if (number, row) in sample]
    shared = np.mean([np.minimum(each[:, None], each).sum(-1) for each in maps], axis=0)
    for number, each in enumerate(result.heads):
        for near in each.nearest:
            other = 4 * near.head.layer + near.head.head
            rest = np.mean([1 - np.sort(each[[number, other]])[:, -MOST_KEYS:].sum() / 2 for each in maps])
            assert near.overlap == pytest.approx(shared[number, other], abs=2 * rest + ROUNDING)
        assert [near.overlap for near in each.nearest] == sorted(
            (n.overlap for n in each.nearest), reverse=True
        )
        best = np.delete(shared[number], number).max()
        assert each.nearest[0].overlap == pytest.approx(best, abs=0.1)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("by", "score"),
    [
        ("previous", lambda row, weights: weights[row - 1] if row else None),
        ("* -> -2", lambda row, weights: weights[row - 2] if row > 1 else None),
        ("-1 or 0", lambda row, weights: sum(weights[key] for key in {0, row - 1}) if row else weights[0]),
        ("confidence", lambda row, weights: max(weights) if row else None),
    ],
)
def test_rows_are_ordered_by_measure_or_question(model, texts, rows, by, score):
    found = corpus_examples(model, ListedTexts(texts[:150]), by=by, top=MOST_ROWS)
    assert found.by == by
    assert_top(found.heads, [row for row in rows if row[0] <= 150], score)


def test_question_asks_the_rows_of_its_left_part(model):
    found = corpus_examples(model, ListedTexts(["The cat sat on the mat.", "A mat."] * 3), by="sat -> cat")
    own = model.prepare("The cat sat on the mat.")
    maps = []
    model.run(own, [SimpleNamespace(observe=lambda attention: maps.append(attention.weights()[0]))])
    labels = [token.text.strip() for token in own.tokens]
    for each in found.heads:
        assert len(each.top) == 3 * sum(label in "sat" for label in labels[2:4] if label)
        for row in each.top:
            assert row.text in ("text 1", "text 3", "text 5")
        assert each.top[0].score > 0
        assert each.deciles == ()


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("tokens", "window"), [(30, 7), (200, 8192)])
def test_batches_and_windows_change_nothing(model, monkeypatch, texts, tokens, window):
    whole = corpus_examples(model, ListedTexts(texts[:60]))
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", tokens)
    monkeypatch.setattr("attnscope.questions.corpus.WINDOW_TEXTS", window)
    split = corpus_examples(model, ListedTexts(texts[:60]))
    for one, other in zip(whole.heads, split.heads, strict=True):
        assert [row.score for row in one.top] == pytest.approx([row.score for row in other.top], abs=ROUNDING)
        assert one.entropy.shares == pytest.approx(other.entropy.shares, abs=2 / 60)
        assert one.distances.shares == pytest.approx(other.distances.shares, abs=ROUNDING)


def test_rows_that_later_batches_skip_are_not_among_the_kept(model, monkeypatch, texts, rows):
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", 60)
    read = [row for row in rows if row[0] <= 150]
    found = corpus_examples(model, ListedTexts(texts[:150]), top=MOST_ROWS)
    assert_top(found.heads, read)
    for each in found.heads:
        assert_tenths(each, scored(read, (each.head.layer, each.head.head)))


def made_up(seed, count=70):
    """Kept rows with many equal scores, in any order, each place once."""
    draw = torch.Generator().manual_seed(seed)
    place = torch.zeros(2, count, 4, dtype=torch.int32)
    place[..., 0] = seed
    place[..., 1] = torch.stack([torch.randperm(count, generator=draw) for _ in range(2)])
    score = torch.randint(0, 5, (2, count), generator=draw) / 4 - 0.5
    keys = torch.randint(0, 9, (2, count, MOST_KEYS), generator=draw)
    return ExampleRows(rank_scores(score), score, place, keys.int(), keys.float())


def test_rows_merge_in_any_order_into_the_same():
    found = set()
    for order in ([1, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2]):
        merged = ExampleRows.none(2)
        for seed in order:
            merged.merge(made_up(seed))
        found.add(b"".join(each.numpy().tobytes() for each in vars(merged).values()))
        assert merged.rank.shape == (2, MOST_ROWS)
    assert len(found) == 1
    places = sorted(
        (-float(rows.score[0, at]), *rows.place[0, at, :2].tolist())
        for rows in map(made_up, (1, 2, 3, 4))
        for at in range(70)
    )
    assert [tuple(each) for each in merged.place[0, :, :2].tolist()] == [
        each[1:] for each in places[:MOST_ROWS]
    ]


def test_ranks_are_in_the_opposite_order_of_any_scores():
    scores = torch.tensor([-3.5, -0.25, 0.0, 1e-30, 0.5, 0.5000001, 1.0, 2e20])
    ranks = rank_scores(scores).tolist()
    assert all(one > other for one, other in pairwise(ranks))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("stop", [20, 50])
def test_stopped_run_resumes_to_identical_examples(model, monkeypatch, tmp_path, texts, stop):
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", 60)
    monkeypatch.setattr("attnscope.questions.corpus.WINDOW_TEXTS", 64)
    monkeypatch.setattr("attnscope.questions.corpus.SAVING_SECONDS", 0.0)
    corpus, file = ListedTexts(texts[:60]), tmp_path / "sums.json"

    def end(progress):
        if progress.texts >= stop:
            raise KeyboardInterrupt

    whole = plain(corpus_examples(model, corpus))
    with pytest.raises(KeyboardInterrupt):
        corpus_examples(model, corpus, run=CorpusRun(checkpoint=file, watch=end))
    assert plain(corpus_examples(model, corpus, run=CorpusRun(checkpoint=file))) == whole
    ran = CorpusRun(checkpoint=file, watch=lambda now: pytest.fail("a pass ran"))
    assert plain(corpus_examples(model, corpus, run=ran)) == whole
    with pytest.raises(InputError, match="another order of rows"):
        corpus_examples(model, corpus, by="previous", run=CorpusRun(checkpoint=file))


@pytest.mark.nightly
@pytest.mark.subprocess
def test_two_processes_keep_the_same_examples(model, monkeypatch, texts):
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", 60)
    alone = plain(corpus_examples(model, ListedTexts(texts[:100])))
    monkeypatch.setattr("attnscope.questions.corpus.workers", lambda *_: 2)
    assert plain(corpus_examples(model, ListedTexts(texts[:100]))) == alone


def test_state_does_not_grow_with_the_corpus(monkeypatch, model, texts):
    states = []
    monkeypatch.setattr(
        "attnscope.questions.corpus.write_checkpoint",
        lambda path, identity, state: states.append(state["sums"]),
    )
    monkeypatch.setattr("attnscope.questions.corpus.SAVING_SECONDS", 0.0)
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", 100)
    corpus_examples(model, ListedTexts(texts[:100]), run=CorpusRun(checkpoint=Path("sums.json")))
    sizes = [[len(part) for site in state["sites"] for part in site["rows"]] for state in states]
    assert len(sizes) > 10
    assert sizes[5] == sizes[-1]


def test_long_texts_are_read_row_by_row(tmp_path):
    model = load(gpt2(tmp_path, n_positions=700, n_layer=1, initializer_range=0.6))
    texts = [" ".join(sentences(60, seed, most=20)) for seed in range(2)]
    limited = CorpusRun(max_tokens=600)
    found = corpus_examples(model, ListedTexts(texts), run=limited, top=20)
    module = transformers.AutoModel.from_pretrained(model.name, attn_implementation="eager").eval()
    maps = []
    for text in texts:
        ids = [token.id for token in model.prepare(text, limit=Limit(600)).tokens]
        with torch.no_grad():
            maps.append(module(torch.tensor([ids]), output_attentions=True).attentions[0][0].double())
    for head, each in enumerate(found.heads):
        best = []
        for weights in maps:
            others = weights[head].clone()
            others[:, 0] = 0
            others.fill_diagonal_(0)
            best += others[2:].amax(-1).tolist()
        assert [row.score for row in each.top] == pytest.approx(sorted(best, reverse=True)[:20], abs=ROUNDING)


def test_cross_attention_shows_the_context_of_its_keys(tmp_path):
    model = load(t5(tmp_path))
    found = corpus_examples(model, ListedTexts(LINES * 3), top=2)
    kinds = {each.head.kind for each in found.heads}
    assert kinds == {"encoder", "decoder", "cross"}
    cross = next(each for each in found.heads if each.head.kind == "cross")
    cell = context_cell(cross.top[0])
    assert cell[0] == (f"»{cross.top[0].token}«", "bold")
    assert sum(text.startswith("»") for text, _ in cell) == 1


def test_context_has_an_ellipsis_where_tokens_are_left_out():
    places = ((2, "the", 0.0), (3, " cat", 0.5), (7, " it", 0.0), (8, "s", 0.0))
    context = tuple(Bar(label, position, weight) for position, label, weight in places)
    row = Example("1", 7, "it", 1.0, context[1:2], context)
    assert "".join(text for text, _ in context_cell(row)) == "the [cat 0.50] … »it«s"


def test_context_marks_its_row_and_heavy_keys(result):
    row = result.heads[0].top[0]
    cell = context_cell(row)
    text = "".join(piece for piece, _ in cell)
    assert text.count("»") == 1
    for key in row.keys[:1]:
        assert f" {key.weight:.2f}]" in text or key.position == row.position


def test_one_head_of_a_corpus(model, texts):
    one, every = (corpus_examples(model, ListedTexts(texts[:80]), head) for head in (Head("L1H2"), None))
    alone, (among,) = one.heads[0], [each for each in every.heads if each.head.name == "L1H2"]
    assert plain(alone) == plain(replace(among, place=None))
    assert one.by == BY_WEIGHT
    lines = list(examples_answer(one, one=True).table())
    assert len(lines) == 1 + 10 + sum(len(tenth.rows) for tenth in alone.deciles)
    with pytest.raises(SelectionError, match="no head L7H0"):
        corpus_examples(model, ListedTexts(texts[:3]), Head("L7H0"))


def test_draw_is_that_of_its_definition():
    found = draw_ranks(torch.tensor([[1], [50_000]]), torch.arange(3)).tolist()
    assert found == [[draw(number, row) for row in range(3)] for number in (1, 50_000)]


def test_run_shows_examples_of_its_model():
    texts = sentences(12)
    shown = attnscope.load("own").read("A text.").examples("L1H3", texts=texts, by="previous", top=2)
    alone = corpus_examples(load("own"), ListedTexts(texts), Head("L1H3"), by="previous", top=2)
    assert shown.numbers["heads"] == plain(alone.heads)
    assert "the previous token" in repr(shown)


SENTENCES = "It slept.", "The unbelievable cat sat here, because an extraordinarily old dog wanted to sleep."


@pytest.mark.parametrize("sentences", [False, True])
def test_context_ends_between_words_or_sentences(sentences):
    texts = ListedTexts([" ".join(SENTENCES)] * 3)
    found = corpus_examples(load("own"), texts, Head("L2H1"), top=60, sentences=sentences)
    rows = [each for each in found.heads[0].top if each.token not in ("[CLS]", "[SEP]")]
    assert len(rows) > 40
    words = {word.strip(".,") for sentence in SENTENCES for word in sentence.split()}
    for row in rows:
        shown = "".join(each.label for each in row.context if each.label.strip() not in ("[CLS]", "[SEP]"))
        assert {word.strip(".,") for word in shown.replace(".", ". ").split()} <= words | {""}
        assert any(sentence in shown for sentence in SENTENCES) >= sentences


def test_unequal_scores_look_unequal():
    assert _spell_order([0.99991, 0.9998, 0.5]) == ["0.9999", "0.9998", "0.5000"]
    assert _spell_order([0.5, 0.5, 0.25]) == ["0.50", "0.50", "0.25"]
