"""Processes that share a corpus give the scores of one process, bit for bit."""

import json
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from attnscope.errors import InputError, ModelError
from attnscope.limits import memory_shared
from attnscope.models import load
from attnscope.questions import corpus, processes
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.corpus_stats import _StatsWork, corpus_stats
from attnscope.questions.processes import in_order, torchrun_processes, workers
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import minilm

TEXTS = ["a cat saw the dog " * (1 + number // 2) for number in range(20)]


def launch(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command += map(str, arguments)
    asked = {"cwd": Path(__file__).parents[3], "env": os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}}
    return subprocess.run(command, **asked, capture_output=True, text=True, timeout=240)


def in_two(work, *arguments, count=2):
    """Do work in two forks, which are placed like processes that torchrun starts.  -> their exit codes"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def begin(number):
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(count)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.set_num_threads(1)  # a fork has none of the threads that torch would wait for
        work(*arguments)

    fork = multiprocessing.get_context("fork").Process
    forks = [fork(target=begin, args=(number,)) for number in range(count)]
    for each in forks:
        each.start()
    for each in forks:
        each.join(120)
        each.kill()
    return [each.exitcode for each in forks]


def count(out, checkpoint, before=lambda number, batches: None):
    """A corpus, its scores in a file; ``before`` each of its batches, a process may die, or wait."""
    batches, measure = [], _StatsWork.measure_batch

    def measure_batch(work, batch, plan):
        batches.append(batch)
        before(torchrun_processes().number, len(batches))
        return measure(work, batch, plan)

    _StatsWork.measure_batch = measure_batch
    processes.BEAT_SECONDS, processes.LOST_SECONDS = 0.1, 3.0
    stats = corpus_stats(load("own"), ListedTexts(TEXTS), run=CorpusRun(checkpoint=checkpoint))
    if torchrun_processes().number == 0:
        out.write_bytes(pickle.dumps((stats, len(batches))))


def told(stats):
    return stats.title, stats.ran, stats.heads


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.subprocess
def test_killed_process_ends_the_run_and_the_same_command_resumes(tmp_path, monkeypatch, capfd, own):
    out, kept, meet = tmp_path / "out", tmp_path / "sums.json", meeting()

    def die(number, batches):
        meet()
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(corpus, "WINDOW_TEXTS", 7)
    assert in_two(count, out, kept, die) == [1, -signal.SIGKILL]
    progress = json.loads(kept.read_text())["state"]["progress"]
    assert 7 - 2 <= progress["texts"] < 7  # all but the batch of the lost process, of one text or of two
    sentence = (
        f"process 1 of this job has ended; {progress['texts']} texts saved in {kept}, and the same comm"
    )
    assert sentence in capfd.readouterr().err
    assert not out.exists()
    assert in_two(count, out, kept) == [0, 0]
    assert told(pickle.loads(out.read_bytes())[0]) == told(corpus_stats(own, ListedTexts(TEXTS)))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.subprocess
def test_free_process_takes_the_batches_of_a_busy_one(tmp_path, own):
    out, meet, free = tmp_path / "out", meeting(), multiprocessing.get_context("fork").Event()

    def wait(number, batches):
        meet()
        if number == 1:
            assert free.wait(60)
        elif batches == 9:
            free.set()

    assert in_two(count, out, None, wait) == [0, 0]
    stats, batches = pickle.loads(out.read_bytes())
    assert batches == 9  # of ten, two texts each
    assert told(stats) == told(corpus_stats(own, ListedTexts(TEXTS)))


@pytest.mark.slow
@pytest.mark.subprocess
def test_command_prints_one_table_for_any_process_count(tmp_path, run):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TEXTS, "too long " * 600]), "utf-8")
    shared = launch("attnscope", "stats", "--texts", path, "--sort", "previous", "--top", "5")
    assert shared.returncode == 0, shared.stderr
    alone = run("stats", "--texts", path, "--sort", "previous", "--top", "5")
    assert shared.stdout == alone.out
    assert alone.out.count("L2H1") == 1
    assert shared.stderr.count("skipped line 21") == 1


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def counts(two_threads, monkeypatch):
    """How many processes shared each window."""
    seen = []
    monkeypatch.setattr(corpus, "in_order", lambda *given: seen.append(given[2]) or in_order(*given))
    return seen


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["own", minilm()], ids=["the bundled encoder", "MiniLM"])
def test_two_processes_give_bit_identical_scores(name, counts):
    model = load(name)
    together = corpus_stats(model, ListedTexts(TEXTS))
    torch.set_num_threads(1)
    alone = corpus_stats(model, ListedTexts(TEXTS))
    assert (alone.heads, alone.title, alone.ran) == (together.heads, together.title, together.ran)
    assert counts == [2, 1]


def test_text_longer_than_a_batch_uses_all_threads(counts, monkeypatch, own):
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", 40)
    corpus_stats(own, ListedTexts(TEXTS))
    assert counts == [1]


def meeting():
    """A function that waits, when it is first called in one of two processes, until the other calls it."""
    both, met = multiprocessing.get_context("fork").Barrier(2), []
    return lambda: met or met.append(both.wait(60))


@pytest.mark.usefixtures("two_threads")
def test_results_of_two_processes_keep_item_order():
    meet = meeting()  # or the first process has done all before the other one has started

    def work(item: int) -> tuple[int, int, int]:
        meet()
        return item, os.getpid(), torch.get_num_threads()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = list(in_order(work, range(9), 2))
    items, processes, threads = zip(*results, strict=True)
    assert items == tuple(range(9))
    assert os.getpid() in processes
    assert len(set(processes)) == 2
    assert set(threads) == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("fails_here", [True, False], ids=["of this process", "of the other process"])
def test_worker_error_is_raised_in_place_of_its_result(fails_here):
    here, meet, before = os.getpid(), meeting(), multiprocessing.active_children()

    def work(item: int) -> int:
        if item > 9:
            meet()  # so that each of them takes such an item
            if (os.getpid() == here) == fails_here:
                raise InputError("this text is empty")
        return item

    results = in_order(work, range(10_000), 2)
    assert [next(results) for _ in range(10)] == list(range(10))
    with pytest.raises(InputError, match="this text is empty"):
        list(results)
    assert multiprocessing.active_children() == before
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_killed_worker_is_reported_with_advice():
    here, meet = os.getpid(), meeting()

    def work(item: int) -> int:
        meet()
        return item if os.getpid() == here else os._exit(9)

    with pytest.raises(ModelError, match="lack of memory: set OMP_NUM_THREADS=1"):
        list(in_order(work, range(9), 2))


def test_processes_share_the_memory_limit():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = 64 << 30
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        with memory_shared(2):
            limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
            assert most // 2 <= limit < most
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == most
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.usefixtures("two_threads")
def test_workers_are_used_only_for_many_batches_of_a_small_model(monkeypatch, own):
    assert (workers(own, 8), workers(own, 7)) == (2, 1)
    monkeypatch.setattr("attnscope.questions.processes.LARGE_MODEL", 1000)
    assert workers(own, 8) == 1
    monkeypatch.undo()
    monkeypatch.setattr(own, "forkable", False)
    assert workers(own, 8) == 1
