"""Parts of a text, and how much each looks at each, against NumPy on the rows of every head."""

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from attnscope.capture import Keep
from attnscope.errors import InputError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.questions.find import parse_questions
from attnscope.questions.parts import Span, cut_text, read_marks, read_parts, segments, spans_of
from attnscope.questions.selection import Selection
from attnscope.questions.spans import of_spans, span_maps
from attnscope.questions.stats import measure_heads
from tests.models import folders

TEXT = 'The cat sat on the mat. It was tired because it ran.\n\n"Who slept?" he said! The cat did.'


def looks_of(name, way="sentence", selection=None):
    """The text as a model reads it, its parts, and how much each looks at each."""
    model = load(name)
    prepared = model.prepare(TEXT)
    spans = spans_of(prepared.tokens, TEXT, cut_text(TEXT, way))
    return prepared, spans, span_maps(model, prepared, spans, selection)


def test_sentences_begin_where_one_ends_and_a_capital_or_a_quote_follows():
    parts = list(cut_text(TEXT, "sentence"))
    assert [TEXT[begin : begin + 4] for _, begin in parts] == ["The ", "It w", '"Who', "The "]
    assert parts[1][0] == "2 It was tired because it…"


@pytest.mark.parametrize(("way", "count"), [("line", 2), ("paragraph", 2), ("sentence", 4)])
def test_every_token_stands_in_one_part_and_special_tokens_in_their_own(way, count):
    prepared = load("own").prepare(TEXT)
    spans = spans_of(prepared.tokens, TEXT, cut_text(TEXT, way))
    assert len(spans) == count + 2
    assert (spans[0].name, spans[-1].name) == ("[CLS]", "[SEP]")
    assert [span.stop for span in spans[:-1]] == [span.start for span in spans[1:]]
    assert (spans[0].start, spans[-1].stop) == (0, len(prepared.tokens))
    for span, (_, begin) in zip(spans[1:-1], cut_text(TEXT, way), strict=True):
        first = prepared.tokens[span.start].text.strip()
        assert TEXT[begin:].lstrip().startswith(first)


def test_marks_name_parts_and_are_not_read_by_the_model():
    text, parts = read_marks("[[fact: The cat slept.]] It rained. [[question: Who slept?]]")
    assert text == "The cat slept. It rained. Who slept?"
    spans = spans_of(load("own").prepare(text).tokens, text, parts)
    assert [span.name for span in spans] == ["[CLS]", "fact", "rest 2", "question", "[SEP]"]
    with pytest.raises(InputError, match="no marks"):
        read_marks("nothing is marked [[here]]")


def test_the_texts_of_a_pair_are_parts():
    prepared = load(folders.minilm()).prepare("The cat sat.", "The dog barked.")
    assert [span.name for span in segments(prepared.tokens)] == [
        "[CLS]", "first text", "[SEP]", "second text", "[SEP]#2",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["own", "own-causal"])
def test_weights_and_baselines_equal_brute_force(name):
    prepared, spans, seen = looks_of(name)
    keep = Keep(lambda site: range(8 if name == "own" else 4))
    load(name).run(prepared, [keep])
    rows = np.concatenate([kept.weights[0].double().numpy() for kept in keep.maps])  # [head, query, key]
    size = len(prepared.tokens)
    even = np.tril(np.ones((size, size))) if name == "own-causal" else np.ones((size, size))
    even /= even.sum(1, keepdims=True)
    for a, one in enumerate(spans):
        for b, other in enumerate(spans):
            block = ..., slice(one.start, one.stop), slice(other.start, other.stop)
            np.testing.assert_allclose(seen.weights[:, a, b], rows[block].sum(-1).mean(-1), atol=1e-6)
            np.testing.assert_allclose(seen.baseline[:, a, b], even[block].sum(-1).mean(), atol=1e-6)
    np.testing.assert_allclose(seen.weights.sum(-1), 1, atol=1e-5)


def test_a_long_text_is_cut_inside_of_the_fused_pass(tmp_path):
    model = load(folders.gpt2(tmp_path, n_positions=2048))
    text = " ".join(TEXT.split()) * 40
    prepared = model.prepare(text, limit=Limit(1500))
    spans = spans_of(prepared.tokens, text, cut_text(text, "sentence"))
    seen = span_maps(model, prepared, spans)
    exact = span_maps(model, prepared, spans, exact_kernel=True)
    assert "2 of 2 calls ran as a fused pass" in seen.notes[0]
    assert len(spans) > 30
    np.testing.assert_allclose(seen.weights, exact.weights, atol=2e-6)
    np.testing.assert_allclose(seen.baseline, exact.baseline, atol=1e-6)


def test_a_pair_of_parts_ranks_the_heads_and_the_parts():
    _, _, seen = looks_of("own", selection=Selection(layers=(1, 2)))
    (answer,) = seen.pair(parse_questions("'It was tired' -> 1")[0])
    weights = seen.weights[:, 2, 1]
    assert [looking.weight for looking in answer.heads] == sorted(weights.tolist(), reverse=True)
    best = int(weights.argmax())
    assert answer.heads[0].head == seen.heads[best]
    assert answer.heads[0].rank == 1 + (seen.weights[best, 2] > weights[best]).sum()
    with pytest.raises(SelectionError, match="no part 'dog': the text has the parts"):
        seen.pair(parse_questions("dog -> 1")[0])


def test_at_a_star_the_parts_are_ranked_by_how_much_the_heads_look_at_them():
    _, spans, seen = looks_of("own-causal")
    answers = seen.pair(parse_questions("2 -> *")[0])
    row = [span.name[:2] for span in spans].index("2 ")
    shares = seen.weights[:, row].mean(0)
    order = [number for number in np.argsort(-shares) if number <= row]  # what comes later is masked
    assert [answer.question.right.text for answer in answers] == [spans[number].name for number in order]
    for answer, number in zip(answers, order, strict=True):
        expected = dict(zip(seen.heads, seen.weights[:, row, number], strict=True))
        assert {each.head: each.weight for each in answer.heads} == expected


def test_what_comes_later_cannot_be_looked_at_by_a_decoder():
    _, _, seen = looks_of("own-causal", "line")
    with pytest.raises(SelectionError, match="cannot look at"):
        seen.pair(parse_questions("1 -> 2")[0])
    assert not torch.tensor(seen.weights)[:, 1, 2].any()


@pytest.mark.parametrize("name", ["own", "minilm"])
def test_lines_in_scripts_that_a_vocabulary_lacks_are_still_parts(name):
    text = Path("sample_inputs/languages.txt").read_text("utf-8")
    model = load(folders.minilm() if name == "minilm" else name)
    prepared = model.prepare(text, limit=Limit(truncate=True))
    spans = spans_of(prepared.tokens, text, cut_text(text, "line"))[1:-1]
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(spans) >= (12 if name == "minilm" else len(lines))
    for span, line in zip(spans, lines, strict=False):
        first = prepared.tokens[span.start].text.strip().partition(" ")[0]
        assert line.startswith(first), (span, line)


def test_a_deep_indent_leaves_no_token_behind():
    text = "one two\n" + " " * 60 + "three four"
    spans = spans_of(load("own").prepare(text).tokens, text, cut_text(text, "line"))
    assert spans[1:3] == (Span("1 one two", 1, 3), Span("2 three four", 3, 5))


def test_marks_that_never_end_are_read_at_once():
    with pytest.raises(InputError, match="no marks"):
        read_marks("[[a: " * 100_000)
    text, parts = read_marks("[[a: " * 100_000 + "[[fact: A cat.]]")
    assert text.endswith("A cat.")
    assert [name for name, _ in parts] == ["", "fact"]


def test_parts_behind_the_last_token_are_never_cut():
    text = "A cat sat. " * 5000
    cut = cut_text(text, "sentence")
    spans = spans_of(load("own").prepare(text, limit=Limit(16)).tokens, text, cut)
    assert [span.name for span in spans][1:-1] == [f"{number} A cat sat." for number in (1, 2, 3, 4)]
    assert next(cut)[0] == "6 A cat sat."


def test_marks_and_files_of_parts_without_end_are_refused(monkeypatch):
    monkeypatch.setattr("attnscope.questions.parts.MOST_MARKED", 100)
    for read, many in ((read_marks, "[[a: b]] " * 20), (read_parts, json.dumps({"a" * 100: [0, 1]}))):
        with pytest.raises(InputError, match=r"has 1\d\d characters.*: shorten it to 100"):
            read(many)


def test_numbers_are_not_written_out_for_who_only_looks(monkeypatch):
    def never(result):
        raise AssertionError("nobody asked for the numbers")

    monkeypatch.setattr("attnscope.questions.answer.plain", never)
    _, _, maps = looks_of("own", "line")
    with pytest.raises(AssertionError, match="nobody asked"):
        _ = of_spans(maps, one=False).numbers


# The bundled causal encoder copies from some sixty tokens back: its heads were trained on no longer repeats.
# Hence ten paragraphs of four words of its vocabulary, a question, and the answer.
DOCUMENTS = 100
PARAGRAPHS = 10


@cache
def words():
    """Words that are one token each, longer ones, which carry more than grammar."""
    file = Path("attnscope/pretrained/own-causal/tokenizer.json")
    return sorted(
        word for word in Tokenizer.from_file(str(file)).get_vocab() if word.isalpha() and len(word) > 3
    )


def document(seed):
    """A text with marks, and which paragraph holds the fact."""
    chosen = random.Random(seed)
    drawn = chosen.sample(words(), 4 * PARAGRAPHS)
    paragraphs = [drawn[4 * number : 4 * number + 4] for number in range(PARAGRAPHS)]
    place = chosen.randrange(PARAGRAPHS)
    fact = paragraphs[place]
    parts = [f"[[paragraph {number}: {' '.join(each)}.]]" for number, each in enumerate(paragraphs)]
    parts += [f"[[question: {' '.join(fact[:2])}?]]", f"[[answer: {' '.join(fact)}.]]"]
    return "\n\n".join(parts), place


def copying_heads(model):
    """The heads with the strongest induction on words at random that come twice: found, not known."""
    drawn = random.Random(-1).sample(words(), 40)
    heads = measure_heads(model, model.prepare(" ".join(drawn * 2)), Selection()).heads
    return [head.address for head in heads if head.role and head.role.name == "induction"]


@pytest.mark.slow
def test_the_paragraph_that_holds_the_fact_is_looked_at_most_in_95_of_100_documents():
    model = load("own-causal")
    heads = copying_heads(model)
    assert [head.name for head in heads] == ["L1H0", "L1H3"]
    questions = [parse_questions(f"answer -> 'paragraph {number}'")[0] for number in range(PARAGRAPHS)]
    right = 0
    for seed in range(DOCUMENTS):
        marked, place = document(seed)
        text, parts = read_marks(marked)
        prepared = model.prepare(text)
        seen = span_maps(model, prepared, spans_of(prepared.tokens, text, parts))
        looks = [{each.head: each.weight for each in seen.pair(question)[0].heads} for question in questions]
        right += int(np.argmax([sum(look[head] for head in heads) for look in looks])) == place
    assert right >= 95
