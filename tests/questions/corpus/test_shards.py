"""Shards of a corpus: their sums, merged, are those of one run over all texts, bit for bit."""

import json
import multiprocessing
import os
import signal
from itertools import count

import pytest
import torch

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions import corpus
from attnscope.questions.corpus import CorpusRun, EmptyShard, deal
from attnscope.questions.corpus_stats import corpus_stats, merged_stats
from attnscope.questions.examples import corpus_examples
from attnscope.questions.gold import find_gold, merged_gold
from attnscope.questions.selection import Selection
from attnscope.records import plain
from attnscope.storage.checkpoint import write_checkpoint
from attnscope.storage.corpus import ListedTexts
from attnscope.storage.gold import read_gold
from tests.questions.gold import treebank

WORDS = "the cat saw a dog on that old mat because it was tired"
TEXTS = [WORDS[4 * (number % 3) : 14 + number * 5 % 31] for number in range(40)]
TEXTS[5:5] = [" ", "too long " * 600]
ALL = ListedTexts(TEXTS)
COUNT = 8


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Eleven windows: a full round of eight, and three that are shared batch by batch."""
    monkeypatch.setattr(corpus, "WINDOW_TEXTS", 4)
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", 20)


def run_shards(ask, folder, count=COUNT):
    """Every shard of a run.  -> the files of their sums"""
    files = [folder / f"sums-{number}.json" for number in range(1, count + 1)]
    for number, file in enumerate(files, 1):
        try:
            ask(run=CorpusRun(checkpoint=file, shard=(number, count)))
        except EmptyShard:
            assert file.exists()
    return files


@pytest.fixture(scope="module")
def shards(own, tmp_path_factory):
    """The sums of all shards, which tests may not change."""
    patch = pytest.MonkeyPatch()
    patch.setattr(corpus, "WINDOW_TEXTS", 4)
    patch.setattr("attnscope.models.inputs.BATCH_TOKENS", 20)
    with patch.context():
        files = run_shards(lambda run: corpus_stats(own, ALL, run=run), tmp_path_factory.mktemp("shards"))
    patch.undo()
    return files


def told(stats):
    return stats.heads, stats.title, stats.ran, stats.notes


def test_merged_shards_equal_one_run_bit_for_bit_in_any_order(own, shards):
    whole = corpus_stats(own, ALL)
    assert "2 texts could not be read: text 6, text 7" in whole.notes
    for files in (shards, shards[::-1], [*shards[1::2], *shards[::2]]):
        assert told(merged_stats(files)) == told(whole)
    assert told(corpus_stats(own, ALL, run=CorpusRun(merge=tuple(shards)))) == told(whole)


def test_each_shard_reads_its_own_part(shards):
    progress = [json.loads(file.read_text())["state"]["progress"] for file in shards]
    assert all(each["texts"] for each in progress)
    assert sum(each["texts"] for each in progress) == len(TEXTS) - 2
    assert sum(each["skipped"] for each in progress) == 2


def test_corpus_of_few_batches_leaves_shards_empty(own, tmp_path):
    few = ListedTexts(TEXTS[:2])
    files = run_shards(lambda run: corpus_stats(own, few, run=run), tmp_path)
    assert told(merged_stats(files)) == told(corpus_stats(own, few))


def test_interrupted_shard_resumes_to_the_same_sums(own, shards, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "SAVING_SECONDS", 0.0)
    file, expected = tmp_path / "sums.json", json.loads(shards[1].read_text())
    for _ in range(3):  # each time after one more batch
        stop = iter([None])

        def end(progress, stop=stop):
            if next(stop, stop) is stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            corpus_stats(own, ALL, run=CorpusRun(checkpoint=file, shard=(2, COUNT), watch=end))
        with pytest.raises(InputError, match="is not finished: the same command resumes shard 2/8"):
            merged_stats([file])
    corpus_stats(own, ALL, run=CorpusRun(checkpoint=file, shard=(2, COUNT)))
    assert json.loads(file.read_text())["state"] == expected["state"]


@pytest.mark.sweep(2)
@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("ask", [corpus_stats, corpus_examples])
def test_shard_killed_in_a_window_resumes_to_the_same_sums(own, ask, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "SAVING_SECONDS", 0.0)
    file, whole = tmp_path / "sums.json", tmp_path / "whole.json"
    ask(own, ALL, run=CorpusRun(checkpoint=whole, shard=(2, COUNT)))
    expected = json.loads(whole.read_text())

    def measure(after):
        watched = count()

        def end(progress):
            if next(watched) == after:
                os.kill(os.getpid(), signal.SIGKILL)

        torch.set_num_threads(1)  # a fork has none of the threads that torch would wait for
        ask(own, ALL, run=CorpusRun(checkpoint=file, shard=(2, COUNT), watch=end))

    for after in (1, 1, None):  # each time, the sums have one more batch
        fork = multiprocessing.get_context("fork").Process(target=measure, args=(after,))
        fork.start()
        fork.join(60)
        assert fork.exitcode == (0 if after is None else -signal.SIGKILL)
        assert json.loads(file.read_text())["state"]["progress"]["finished"] == (after is None)
    assert json.loads(file.read_text())["state"] == expected["state"]


@pytest.mark.nightly
def test_merged_gold_equals_one_run(own, tmp_path):
    bank = tmp_path / "bank.conllu"
    bank.write_text(treebank.conllu() * 3, "utf-8")
    file, how = read_gold(bank), {"held_out": True, "relations": ("nsubj", "obj")}
    files = run_shards(lambda run: find_gold(own, file, run=run, **how), tmp_path, 3)
    merged, whole = merged_gold(files[::-1], file, **how), find_gold(own, file, **how)
    assert (merged.labels, merged.title, merged.notes) == (whole.labels, whole.title, whole.notes)
    with pytest.raises(InputError, match="another set of relations"):
        merged_gold(files, file)


def test_merged_examples_equal_one_run(own, tmp_path):
    some = ListedTexts(TEXTS[:10])
    files = run_shards(lambda run: corpus_examples(own, some, run=run), tmp_path, 2)
    merged = corpus_examples(own, some, run=CorpusRun(merge=tuple(files[::-1])))
    assert plain(merged) == plain(corpus_examples(own, some))


@pytest.mark.nightly
def test_merged_removals_equal_one_run(tmp_path):
    model, some = load("own-causal"), ListedTexts(TEXTS[:5] + TEXTS[7:10])
    how = {"importance": False, "ablation": "mean"}
    files = run_shards(lambda run: corpus_stats(model, some, run=run, **how), tmp_path, 2)
    assert told(merged_stats(files, **how)) == told(corpus_stats(model, some, **how))


def test_shards_of_another_run_are_refused(shards, tmp_path):
    def changed(**identity):
        content = json.loads(shards[2].read_text())
        write_checkpoint(tmp_path / "c.json", content["of"] | identity, content["state"])
        return [*shards[:2], tmp_path / "c.json", *shards[3:]]

    refused = {
        "another model": {"model": "0" * 64},
        "another version": {"version": ["torch 1.0"]},
        "another limit": {"limit": [5, None, False, False]},
        "another number of shards: 9, not 8": {"shard": [3, 9]},
        r"sums-4\.json both are shard 4/8": {"shard": [4, 8]},
    }
    for sentence, identity in refused.items():
        with pytest.raises(InputError, match=sentence):
            merged_stats(changed(**identity))
    with pytest.raises(InputError, match="of 8 shards, 3/8 is missing: measure it first"):
        merged_stats([*shards[:2], *shards[3:]])
    with pytest.raises(InputError, match="another selection of heads"):
        merged_stats(shards, Selection(layers=(0,)))
    with pytest.raises(InputError, match="another importance"):
        merged_stats(shards, importance=True)
    with pytest.raises(InputError, match="these sums do not have max_logit: measure the shards with"):
        merged_stats(shards, names=("entropy", "max_logit"))


def test_sums_of_another_question_are_refused(shards, tmp_path):
    bank = tmp_path / "bank.conllu"
    bank.write_text(treebank.conllu(), "utf-8")
    with pytest.raises(InputError, match="belongs to a run with another question"):
        merged_gold(shards, read_gold(bank))


@pytest.mark.parametrize("begun", range(5))
def test_full_rounds_are_dealt_whole(begun):
    dealt = list(deal(([number] for number in range(begun, 11)), 4, begun))
    assert dealt == [([number], number < 8) for number in range(begun, 11)]
