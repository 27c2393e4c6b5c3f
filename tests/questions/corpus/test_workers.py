"""Threads that share the batches of a corpus change nothing but the time."""

import threading
import time

import pytest
import torch

from attnscope.models import load
from attnscope.questions.corpus import in_order, workers
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.storage.corpus import ListedTexts

TEXTS = [" ".join(["a cat saw the dog"] * (1 + number % 5)) + f" {number}" for number in range(40)]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_two_threads_give_bit_identical_figures():
    model = load("own")
    together = corpus_stats(model, ListedTexts(TEXTS)).heads
    assert workers(model) == torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert corpus_stats(model, ListedTexts(TEXTS)).heads == together


@pytest.mark.usefixtures("two_threads")
def test_results_come_in_the_order_of_the_items_though_both_threads_work():
    both = threading.Barrier(2, timeout=30)
    seen = set()

    def work(item: int) -> tuple[int, int]:
        if item < 2:
            both.wait()  # passes only if two threads work
        seen.add(threading.get_ident())
        return item, torch.get_num_threads()

    assert list(in_order(work, range(9), 2)) == [(item, 1) for item in range(9)]
    assert len(seen) == 2
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_comes_out_where_its_result_would_and_ends_the_work():
    begun = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 3:
            raise ValueError("three")
        if item > 3:
            time.sleep(0.005)  # all of them would take far longer than anybody needs to see the error
        return item

    results = in_order(work, range(10_000), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert len(begun) < 10_000
    assert torch.get_num_threads() == 2


def test_a_model_that_may_keep_something_of_a_pass_has_one_worker(monkeypatch):
    model = load("own")
    monkeypatch.setattr(model, "stateless", False)
    assert workers(model) == 1
