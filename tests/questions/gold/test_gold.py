"""Questions with known answers, against a script that handles one head and one word at a time."""

import json
import re
from collections import Counter, defaultdict
from itertools import chain

import numpy as np
import pytest
import torch

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.gold import find_gold
from attnscope.questions.selection import Selection
from attnscope.storage.gold import read_gold
from tests.models import folders
from tests.questions.corpus.test_corpus_stats import tampered
from tests.questions.corpus.test_processes import launch
from tests.questions.gold import treebank


def weights_of(model, prepared, name="attentions") -> np.ndarray:
    """The weights that the model itself reports, [layer, head, query, key]."""
    model.module.set_attn_implementation("eager")
    with torch.inference_mode():
        given = model.module(**prepared.inputs, output_attentions=True)[name]
    model.module.set_attn_implementation("sdpa")
    return torch.cat(list(given)).double().numpy()


def tokens_of_words(tokenizer, text, words, start=0):
    """For each word the tokens that have most of their characters in it, by the tokenizer's own offsets."""
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    special = {number for number, flag in enumerate(encoded["special_tokens_mask"]) if flag}
    mine = {}
    for number, (begin, end) in enumerate(encoded["offset_mapping"]):
        while begin < end and text[begin] == " ":
            begin += 1
        shared = [max(0, min(end, b) - max(begin, a)) for a, b in words]
        if number not in special and max(shared) > 0:
            mine[number] = shared.index(max(shared))
    pieces = encoded.word_ids(0)
    for number, piece in enumerate(pieces):  # a space alone is a piece of the word that it leads
        if piece is not None and number not in mine and number + 1 in mine and pieces[number + 1] == piece:
            mine[number] = mine[number + 1]
    found = [[number + start for number in mine if mine[number] == place] for place in range(len(words))]
    return found, {number + start for number in special} | set(range(start))


def score(texts, ways=2):
    """The scores of every head, (label, way) -> dict of arrays [layer, head].

    A text is (weights, row words, key words, special keys, links, causal); a word is a list of tokens, a link
    (row word, key word, label).
    """
    answers = defaultdict(list)  # (label, way) -> (text, {head array} right, weight, even, offsets)
    for number, (weights, rows, keys, special, links, causal) in enumerate(texts):
        size = weights.shape[-1]
        single = [[k] for k in range(size) if k not in special and not any(k in word for word in keys)]
        for way in range(ways):
            wanted = defaultdict(set)
            for left, right, label in links:
                one, other = (left, right) if way == 0 else (right, left)
                if rows[one] and keys[other]:
                    wanted[label, one].add(other)
            for (label, one), others in wanted.items():
                mean = weights[:, :, rows[one]].mean(2)  # [layer, head, key]
                sums = np.stack([mean[..., word].sum(-1) for word in [*keys, *single]])
                sums[
                    [not word or (rows is keys and at == one) for at, word in enumerate([*keys, *single])]
                ] = -1
                gold = [token for other in others for token in keys[other]]
                even = np.mean(
                    [sum(not causal or k <= q for k in gold) / (q + 1 if causal else size) for q in rows[one]]
                )
                if even == 0:
                    continue
                reach = [o - one for o in others if not causal or min(keys[o]) <= max(rows[one])]
                right = np.isin(sums.argmax(0), list(others))
                answers[label, way].append((number, right, mean[:, :, gold].sum(-1), even, reach))
    return {key: scores(*zip(*found, strict=True)) for key, found in answers.items()}


def scores(texts, right, weight, even, reach):
    asked, offsets = len(texts), Counter(chain.from_iterable(reach))
    offset = max(offsets, key=lambda each: (offsets[each], -each))
    found = {"rows": asked, "baseline": np.mean(even), "offset": offset, "fixed": offsets[offset] / asked}
    for name, values in (("accuracy", np.array(right, float)), ("weight", np.array(weight))):
        found[name], found[f"{name}_error"] = values.mean(0), None
        of_texts = [values[np.equal(texts, text)] for text in set(texts)]
        if (count := len(of_texts)) > 1:  # the standard error of a ratio of sums over texts
            squares = sum((each.sum(0) - values.mean(0) * len(each)) ** 2 for each in of_texts)
            found[f"{name}_error"] = np.sqrt(count / (count - 1) * squares) / asked
    return found


@pytest.fixture(scope="module", params=["minilm", "gpt2"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return load(folders.minilm() if request.param == "minilm" else folders.gpt2(folder))


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    file = tmp_path_factory.mktemp("bank") / "small.conllu"
    file.write_text(treebank.conllu(), "utf-8")
    return file


def ask(model, folder, text, pairs):
    """The labels of a file of one line."""
    (folder / "a.jsonl").write_text(json.dumps({"text": text, "pairs": pairs}) + "\n")
    return find_gold(model, read_gold(folder / "a.jsonl")).labels


def expected(model, numbers):
    """The scores of the plain script over some sentences of the treebank."""
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
                value = None if plain[name] is None else pytest.approx(plain[name][at], abs=2e-6)
                assert getattr(scored, name) == value, (each.label, each.way, name, at)


def test_gold_scores_equal_a_plain_script(model, bank):
    file = read_gold(bank)
    seen = find_gold(model, file)
    assert_same(seen, expected(model, range(len(treebank.SENTENCES))), file.directions)
    assert all(each.heads[0].accuracy == max(head.accuracy for head in each.heads) for each in seen.labels)


def test_held_out_half_scores_the_ranked_heads(model, bank):
    file = read_gold(bank)
    seen = find_gold(model, file, held_out=True)
    chosen, scored = expected(model, range(0, 5, 2)), expected(model, range(1, 5, 2))
    assert {
        (each.label, file.directions.index(each.way)) for each in seen.labels
    } == chosen.keys() & scored.keys()
    assert seen.labels
    for each in seen.labels:
        key = each.label, file.directions.index(each.way)
        for head in each.heads:
            at = head.head.layer, head.head.head
            assert head.chosen == pytest.approx(chosen[key]["accuracy"][at])
            assert head.accuracy == pytest.approx(scored[key]["accuracy"][at])
            assert head.weight == pytest.approx(scored[key]["weight"][at], abs=2e-6)
            assert (head.rows, head.offset) == (scored[key]["rows"], chosen[key]["offset"])
        ranked = [head.chosen for head in each.heads]
        assert ranked == sorted(ranked, reverse=True)


def test_relation_option_includes_subtypes(bank, own):
    seen = find_gold(own, read_gold(bank), relations=("nsubj", "obl"))
    assert {each.label for each in seen.labels} == {"nsubj", "nsubj:pass", "obl"}
    with pytest.raises(InputError, match=r"no foo in .*: it has advmod, amod, "):
        find_gold(own, read_gold(bank), relations=("foo",))


@pytest.mark.parametrize(("which", "ahead"), [("predicting", 1), ("reading", 0)])
def test_alignment_scores_and_error_rate_equal_a_plain_script(tmp_path, which, ahead):
    pairs = [
        ("The cat sat on the mat", "A small cat sat on mats", "0-0 1-2 2-3 3-4 4?4 5-5 0?1"),
        ("words look back", "look back words", "0-2 1-0 2?1 2-1"),
        ("heads look", "a few heads want", "0-2"),
    ]
    (tmp_path / "texts").write_text("".join(f"{one} ||| {other}\n" for one, other, _ in pairs))
    (tmp_path / "links").write_text("".join(f"{links}\n" for *_, links in pairs))
    model = load(folders.t5(tmp_path / "t5"))
    both = find_gold(model, read_gold(tmp_path / "texts", alignments=tmp_path / "links"))
    file = read_gold(tmp_path / "texts", alignments=tmp_path / "links", rows=which)
    seen = find_gold(model, file)
    texts, agreed, counted = [], 0, 0
    for one, other, links in pairs:
        spaced = [[match.span() for match in re.finditer(r"[^ ]+", text)] for text in (one, other)]
        weights = weights_of(model, model.prepare(one, other), "cross_attentions")
        keys, special = tokens_of_words(model.reader.tokenizer, one, spaced[0])
        rows, _ = tokens_of_words(model.reader.tokenizer, other, spaced[1], start=1)
        rows = [[row - ahead for row in word if row - ahead < weights.shape[2]] for word in rows]
        every = {(int(link[2:]), int(link[0])) for link in links.replace("?", "-").split()}
        sure = {(int(link[2:]), int(link[0])) for link in links.split() if "-" in link}
        texts.append((weights, rows, keys, special, [(*link, "aligned") for link in sorted(every)], False))
        for number, row in enumerate(rows):  # what each head says the word is aligned with
            said = np.argmax([weights[:, :, row][..., key].sum((-2, -1)) for key in keys], 0)
            for right in (every, sure):
                agreed = agreed + np.isin(said, [key for word, key in right if word == number])
        counted += len(rows) + len(sure)
    assert_same(seen, score(texts, ways=1), file.directions)
    (aligned,) = seen.labels
    assert {one.way: one for one in both.labels}[file.directions[0]] == aligned
    better, worse = sorted((each.heads[0].rank, each.heads[0].accuracy) for each in both.labels)
    (note,) = (note for note in both.notes if "find its source best" in note)
    assert note.endswith(f"{better[1]:.2f} right, {worse[1]:.2f}")
    for scored in aligned.heads:
        assert scored.aer == pytest.approx(1 - (agreed / counted)[scored.head.layer, scored.head.head])
        assert scored.head.kind == "cross"


def test_word_and_character_spans_agree_in_json_lines(tmp_path, minilm):
    text, model = "The cat sat on the mat.", minilm
    words = ask(model, tmp_path, text, [[1, 2, "subject"], [5, 2]])
    assert words == ask(model, tmp_path, text, [[[4, 7], [8, 11], "subject"], [[19, 23], [8, 11]]])
    assert {each.label for each in words} == {"subject", "all"}
    there, _ = ask(model, tmp_path, text, [[[19, 22], [8, 11]]])  # "mat." without its full stop
    prepared = model.prepare(text)
    weights, tokens = weights_of(model, prepared), [token.text for token in prepared.tokens]
    weights = weights[:, :, tokens.index("mat"), tokens.index("sat")]
    for scored in there.heads:
        assert scored.weight == pytest.approx(weights[scored.head.layer, scored.head.head], abs=1e-6)


def test_phrase_answers_accept_any_of_its_words(tmp_path, minilm):
    text = "The cat sat on the mat"
    weights, found = weights_of(minilm, minilm.prepare(text))[:, :, 1:-1, 1:-1], []
    there, _ = ask(minilm, tmp_path, text, [[[0, 7], [15, 22]]])
    for scored in there.heads:
        rows = weights[scored.head.layer, scored.head.head].copy()
        assert scored.rows == 2
        assert scored.weight == pytest.approx(rows[:2, 4:6].sum() / 2, abs=1e-6)
        np.fill_diagonal(rows, -1)
        assert scored.accuracy == np.isin(rows[:2].argmax(1), [4, 5]).mean()
        found.append(scored.accuracy)
    assert max(found) > 0


@pytest.mark.parametrize(("layers", "block"), [(None, 1), ((1,), 1 << 22)])
def test_gold_scores_do_not_depend_on_blocks_or_layers(bank, own, monkeypatch, layers, block):
    every = find_gold(own, read_gold(bank))
    monkeypatch.setattr("attnscope.questions.gold_reading.BLOCK", block)
    seen = find_gold(own, read_gold(bank), Selection(layers=layers))
    ones, some = (
        {(each.label, each.way, head.head): head for each in found.labels for head in each.heads}
        for found in (every, seen)
    )
    assert some.keys() == {key for key in ones if layers is None or key[2].layer in layers}
    for key, head in some.items():
        assert head.accuracy == ones[key].accuracy
        assert head.weight == pytest.approx(ones[key].weight, abs=1e-6)


def test_alignments_need_a_model_of_two_texts(tmp_path, own):
    (tmp_path / "texts").write_text("a cat ||| une chat\n")
    (tmp_path / "links").write_text("0-0 1-1\n")
    with pytest.raises(InputError, match="own is not an encoder-decoder"):
        find_gold(own, read_gold(tmp_path / "texts", alignments=tmp_path / "links"))


def test_checkpoint_of_another_run_is_refused(own, tmp_path):
    kept, file = tmp_path / "sums.json", tmp_path / "bank.conllu"
    file.write_text(treebank.conllu(), "utf-8")
    find_gold(own, read_gold(file), run=CorpusRun(checkpoint=kept))
    with pytest.raises(InputError, match="belongs to a run with another set of relations"):
        find_gold(own, read_gold(file), run=CorpusRun(checkpoint=kept), relations=("nsubj",))
    file.write_text(treebank.conllu() * 2, "utf-8")
    with pytest.raises(InputError, match="belongs to a run with another file of questions"):
        find_gold(own, read_gold(file), run=CorpusRun(checkpoint=kept))


LIES = {
    "no sums": lambda sums: sums.pop("sums"),
    "no slots": lambda sums: sums.update(slots=[]),
    "a slot twice": lambda sums: sums["slots"].append(sums["slots"][0]),
    "a third direction": lambda sums: sums["slots"].append(["nsubj", 2]),
    "lost pairs below none": lambda sums: sums.update(lost=-1),
    "a kind that does not exist": lambda sums: sums.update(skipped=["sideways"]),
    "labels that are numbers": lambda sums: sums.update(others=[1]),
    "heads that are texts": lambda sums: sums["sums"][0].update(heads=["0"]),
    "no heads": lambda sums: sums["sums"][0].update(heads=[]),
    "fewer heads than sums": lambda sums: sums["sums"][0].update(heads=[0]),
    "ragged sums": lambda sums: sums["sums"][0]["table"]["shape"].pop(),
    "a site of another kind": lambda sums: sums["sums"][0]["site"].update(kind="sideways"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("lie", LIES)
def test_tampered_checkpoint_with_valid_checksum_is_refused(own, bank, tmp_path, lie):
    kept = tmp_path / "sums.json"
    find_gold(own, read_gold(bank), run=CorpusRun(checkpoint=kept, limit=1))
    run = tampered(kept, lambda state: LIES[lie](state["sums"]), limit=1)
    with pytest.raises(InputError, match="is no checkpoint of this run: delete it"):
        find_gold(own, read_gold(bank), run=run)


@pytest.mark.nightly
@pytest.mark.subprocess
def test_gold_table_of_two_processes_equals_one(bank, run):
    asked = ("find", "--gold", bank, "--relation", "nsubj,obj", "--json")
    shared = launch("attnscope", *asked)
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout == run(*asked).out
    assert json.loads(shared.stdout)["labels"]
