"""Questions with known answers, against a script that asks one head and one word at a time."""

import json
import re

import numpy as np
import pytest

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.gold import find_gold
from attnscope.questions.selection import Selection
from attnscope.storage.gold import read_gold
from tests.models import folders
from tests.questions.gold import treebank
from tests.questions.gold.plain import score, tokens_of_words, weights_of

CAUSAL = {"minilm": False, "gpt2": True}


@pytest.fixture(scope="module", params=list(CAUSAL))
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return load(folders.minilm() if request.param == "minilm" else folders.gpt2(folder))


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    file = tmp_path_factory.mktemp("bank") / "small.conllu"
    file.write_text(treebank.conllu(), "utf-8")
    return file


def expected(model, numbers):
    """The figures of the plain script over some sentences of the treebank."""
    texts = []
    for number in numbers:
        text, spans, links = treebank.plain(number)
        words, special = tokens_of_words(model.reader.tokenizer, text, spans)
        weights = weights_of(model, model.prepare(text))
        texts.append((weights, words, words, special, links, bool(np.triu(weights, 1).max() == 0)))
    return score(texts)


def assert_same(seen, wanted, ways):
    assert {(each.label, ways.index(each.way)) for each in seen.labels} == set(wanted)
    for each in seen.labels:
        plain = wanted[each.label, ways.index(each.way)]
        for scored in each.heads:
            at = scored.head.layer, scored.head.head
            assert scored.rows == plain["rows"]
            assert scored.fixed == pytest.approx(plain["fixed"])
            assert scored.baseline == pytest.approx(plain["baseline"], abs=1e-6)
            for name in ("accuracy", "weight", "accuracy_error", "weight_error"):
                found = plain[name]
                value = getattr(scored, name)
                assert (value is None) == (found is None)
                if found is not None:
                    assert value == pytest.approx(found[at], abs=2e-6), (each.label, each.way, name, at)


def test_every_relation_has_the_figures_of_the_plain_script(model, bank):
    file = read_gold(bank)
    seen = find_gold(model, file)
    assert_same(seen, expected(model, range(len(treebank.SENTENCES))), file.ways)
    assert all(each.heads[0].accuracy == max(head.accuracy for head in each.heads) for each in seen.labels)


def test_heads_are_ranked_on_one_half_and_scored_on_the_other(model, bank):
    file = read_gold(bank)
    seen = find_gold(model, file, held_out=True)
    chosen, scored = expected(model, range(0, 5, 2)), expected(model, range(1, 5, 2))
    assert {(each.label, file.ways.index(each.way)) for each in seen.labels} == chosen.keys() & scored.keys()
    assert seen.labels
    for each in seen.labels:
        key = each.label, file.ways.index(each.way)
        for head in each.heads:
            at = head.head.layer, head.head.head
            assert head.chosen == pytest.approx(chosen[key]["accuracy"][at])
            assert head.accuracy == pytest.approx(scored[key]["accuracy"][at])
            assert head.weight == pytest.approx(scored[key]["weight"][at], abs=2e-6)
            assert head.rows == scored[key]["rows"]
            assert head.offset == chosen[key]["offset"]
        assert [head.chosen for head in each.heads] == sorted(
            (head.chosen for head in each.heads), reverse=True
        )


def test_a_relation_is_asked_for_with_its_kinds(bank):
    seen = find_gold(load("own"), read_gold(bank), relations=("nsubj", "obl"))
    assert {each.label for each in seen.labels} == {"nsubj", "nsubj:pass", "obl"}
    with pytest.raises(InputError, match=r"no foo in .*: it has advmod, amod, "):
        find_gold(load("own"), read_gold(bank), relations=("foo",))


def test_alignments_have_the_figures_of_the_plain_script_and_an_error_rate(tmp_path):
    pairs = [
        ("The cat sat on the mat", "A small cat sat on mats", "0-0 1-2 2-3 3-4 4?4 5-5 0?1"),
        ("words look back", "look back words", "0-2 1-0 2?1 2-1"),
        ("heads look", "a few heads want", "0-2"),
    ]
    (tmp_path / "texts").write_text("".join(f"{one} ||| {other}\n" for one, other, _ in pairs))
    (tmp_path / "links").write_text("".join(f"{links}\n" for *_, links in pairs))
    model = load(folders.t5(tmp_path / "t5"))
    file = read_gold(tmp_path / "texts", alignments=tmp_path / "links")
    seen = find_gold(model, file)
    texts, agreed, counted = [], 0, 0
    for one, other, links in pairs:
        spaced = [[match.span() for match in re.finditer(r"[^ ]+", text)] for text in (one, other)]
        weights = weights_of(model, model.prepare(one, other), "cross_attentions")
        keys, special = tokens_of_words(model.reader.tokenizer, one, spaced[0])
        rows, _ = tokens_of_words(model.reader.tokenizer, other, spaced[1], start=1)
        rows = [[row for row in word if row < weights.shape[2]] for word in rows]
        every = {(int(link[2:]), int(link[0])) for link in links.replace("?", "-").split()}
        sure = {(int(link[2:]), int(link[0])) for link in links.split() if "-" in link}
        texts.append((weights, rows, keys, special, [(*link, "aligned") for link in sorted(every)], False))
        for number, row in enumerate(rows):  # what each head says the word is aligned with
            sums = np.stack([weights[:, :, row][..., key].sum(-1).mean(-1) for key in keys])
            said = sums.argmax(0)
            for links_ in (every, sure):
                agreed = agreed + np.isin(said, [key for one_, key in links_ if one_ == number])
            counted += 1
        counted += len(sure)
    assert_same(seen, score(texts, ways=1), file.ways)
    (aligned,) = seen.labels
    for scored in aligned.heads:
        assert scored.aer == pytest.approx(1 - (agreed / counted)[scored.head.layer, scored.head.head])
        assert scored.head.kind == "cross"


def test_words_and_characters_of_json_lines_mean_the_same(tmp_path):
    text = "The cat sat on the mat."
    lines = {
        "words": [[1, 2, "subject"], [5, 2]],
        "characters": [[[4, 7], [8, 11], "subject"], [[19, 23], [8, 11]]],
    }
    model, found = load(folders.minilm()), []
    for name, pairs in lines.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_text(json.dumps({"text": text, "pairs": pairs}) + "\n")
        found.append(find_gold(model, read_gold(file)).labels)
    assert found[0] == found[1]
    assert {each.label for each in found[0]} == {"subject", "all"}
    file = tmp_path / "part.jsonl"  # of "mat." without its full stop
    file.write_text(json.dumps({"text": text, "pairs": [[[19, 22], [8, 11]]]}) + "\n")
    (there, _) = find_gold(model, read_gold(file)).labels
    weights, prepared = weights_of(model, model.prepare(text)), model.prepare(text)
    mat, sat = ([token.text for token in prepared.tokens].index(word) for word in ("mat", "sat"))
    for scored in there.heads:
        assert scored.weight == pytest.approx(
            weights[scored.head.layer, scored.head.head, mat, sat], abs=1e-6
        )


def test_a_phrase_is_asked_word_by_word_and_any_of_its_words_is_right(tmp_path):
    text = "The cat sat on the mat"
    model = load(folders.minilm())
    weights, found = weights_of(model, model.prepare(text))[:, :, 1:-1, 1:-1], []
    file = tmp_path / "phrase.jsonl"
    file.write_text(json.dumps({"text": text, "pairs": [[[0, 7], [15, 22]]]}) + "\n")
    (there, _) = find_gold(model, read_gold(file)).labels
    for scored in there.heads:
        rows = weights[scored.head.layer, scored.head.head].copy()
        assert scored.rows == 2
        assert scored.weight == pytest.approx(rows[:2, 4:6].sum() / 2, abs=1e-6)
        np.fill_diagonal(rows, -1)
        assert scored.accuracy == np.isin(rows[:2].argmax(1), [4, 5]).mean()
        found.append(scored.accuracy)
    assert max(found) > 0


def test_blocks_of_rows_change_nothing(bank, monkeypatch):
    model = load("own")
    whole = find_gold(model, read_gold(bank))
    monkeypatch.setattr("attnscope.questions.gold_reading.BLOCK", 1)
    for one, other in zip(find_gold(model, read_gold(bank)).labels, whole.labels, strict=True):
        assert (one.label, one.way) == (other.label, other.way)
        heads = {head.head: head for head in other.heads}
        for head in one.heads:
            assert head.accuracy == heads[head.head].accuracy
            assert head.weight == pytest.approx(heads[head.head].weight, abs=1e-6)


def test_some_layers_alone_are_asked(bank):
    model = load("own")
    seen = find_gold(model, read_gold(bank), Selection(layers=(1,)))
    every = find_gold(model, read_gold(bank))
    ones = {(each.label, each.way, head.head): head for each in every.labels for head in each.heads}
    for each in seen.labels:
        assert {head.head.layer for head in each.heads} == {1}
        for head in each.heads:
            assert head.weight == pytest.approx(ones[each.label, each.way, head.head].weight, abs=1e-6)


def test_alignments_need_a_model_of_two_texts(tmp_path):
    (tmp_path / "texts").write_text("a cat ||| une chat\n")
    (tmp_path / "links").write_text("0-0 1-1\n")
    with pytest.raises(InputError, match="own is not an encoder-decoder"):
        find_gold(load("own"), read_gold(tmp_path / "texts", alignments=tmp_path / "links"))
