"""The program on the page about corpora: two workers of Ray Data give the sums of one process."""

import os
import re
from pathlib import Path

import pytest

import attnscope

PAGE = Path(attnscope.__file__).parent / "cli" / "CORPORA.md"
LINES, TEXTS, BATCH = 25, 128, 64


def program():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return code


def test_program_of_the_page_is_short():
    assert len(program().strip().splitlines()) <= LINES


@pytest.mark.slow
@pytest.mark.subprocess
def test_ray_workers_equal_one_process(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [f"The cat saw {'a big dog and ' * (number % 7)}it." for number in range(TEXTS)]
    (tmp_path / "books").mkdir()
    for at in range(0, TEXTS, BATCH):  # a file for each worker
        part = pyarrow.table({"text": texts[at : at + BATCH]})
        parquet.write_table(part, tmp_path / "books" / f"{at}.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(PAGE.parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)  # two for the actors
    try:
        names = {}
        exec(program(), names)
    finally:
        ray.shutdown()
    reader = attnscope.load("own")
    parts = [attnscope.measure_texts(reader, texts[at : at + BATCH]) for at in range(0, TEXTS, BATCH)]
    assert names["total"].texts == TEXTS
    assert names["total"].finish().heads == sum(parts).finish().heads
