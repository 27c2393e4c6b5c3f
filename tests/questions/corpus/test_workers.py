"""Processes that share the batches of a corpus change nothing but the time."""

import os
import time
import warnings

import pytest
import torch

from attnscope.errors import InputError, ModelError
from attnscope.limits import memory_shared
from attnscope.models import load
from attnscope.questions import corpus
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.processes import in_order, workers
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import minilm

TEXTS = ["a cat saw the dog " * (1 + number // 2) for number in range(20)]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["own", minilm()], ids=["the bundled encoder", "MiniLM"])
def test_two_processes_give_bit_identical_figures(name, monkeypatch):
    model, counts = load(name), []
    monkeypatch.setattr(corpus, "in_order", lambda *given: counts.append(given[2]) or in_order(*given))
    together = corpus_stats(model, ListedTexts(TEXTS))
    torch.set_num_threads(1)
    alone = corpus_stats(model, ListedTexts(TEXTS))
    assert (alone.heads, alone.title, alone.ran) == (together.heads, together.title, together.ran)
    assert counts == [2, 1]


@pytest.mark.usefixtures("two_threads")
def test_results_come_in_the_order_of_the_items_though_two_processes_work():
    results = list(in_order(lambda item: (item, os.getpid(), torch.get_num_threads()), range(9), 2))
    assert [item for item, _, _ in results] == list(range(9))
    assert {process for _, process, _ in results[::2]} == {os.getpid()}
    assert len({process for _, process, _ in results}) == 2
    assert {threads for _, _, threads in results} == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("place", [2, 3], ids=["of this process", "of the other process"])
def test_an_error_comes_out_where_its_result_would_and_ends_the_work(place, tmp_path):
    def work(item: int) -> int:
        (tmp_path / str(item)).touch()
        if item == place:
            raise InputError("this text is empty")
        if item > place:
            time.sleep(0.005)  # all of them would take far longer than anybody needs to see the error
        return item

    results = in_order(work, range(10_000), 2)
    assert [next(results) for _ in range(place)] == list(range(place))
    with pytest.raises(InputError, match="this text is empty"):
        next(results)
    begun = len(list(tmp_path.iterdir()))
    time.sleep(0.05)
    assert len(list(tmp_path.iterdir())) == begun < 10_000
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_process_that_the_system_ended_is_reported_with_what_to_do():
    results = in_order(lambda item: os._exit(9) if item else item, range(4), 2)
    assert next(results) == 0
    with pytest.raises(ModelError, match="lack of memory: set OMP_NUM_THREADS=1"):
        next(results)


@pytest.mark.usefixtures("two_threads")
def test_forking_beside_other_threads_warns_nobody():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(in_order(lambda item: item, range(4), 2)) == [0, 1, 2, 3]


def test_processes_share_the_memory_that_the_limit_leaves():
    import resource

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
def test_only_many_batches_of_a_small_model_whose_passes_nobody_else_sees_are_shared(monkeypatch):
    model = load("own")
    assert (workers(model, 8), workers(model, 7)) == (2, 1)
    monkeypatch.setattr("attnscope.questions.processes.LARGE_MODEL", 1000)
    assert workers(model, 8) == 1
    monkeypatch.undo()
    monkeypatch.setattr(model, "forkable", False)
    assert workers(model, 8) == 1


@pytest.mark.usefixtures("two_threads")
def test_a_text_that_is_longer_than_a_batch_has_all_threads(monkeypatch):
    model, counts = load("own"), []
    monkeypatch.setattr(corpus, "in_order", lambda *given: counts.append(given[2]) or in_order(*given))
    monkeypatch.setattr(corpus, "BATCH_TOKENS", 40)
    corpus_stats(model, ListedTexts(TEXTS))
    assert counts == [1]
