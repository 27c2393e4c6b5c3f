"""Four processes: two groups that share the texts, of two processes that split the heads; as one process."""

import csv
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest
import transformers as hf

from attnscope.cli import main
from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.questions import corpus
from attnscope.questions.processes import together
from attnscope.storage.checkpoint import fingerprint
from tests.models.folders import gpt2, llama_of_eight_heads
from tests.questions.corpus.test_processes import in_two

SPLIT = "tp:2"
TEXTS = "sample_inputs/sentences.txt"
ASKED = {
    "stats": ["stats", "--texts", TEXTS, "--limit", "40", "--csv"],
    "find": ["find", "after same", "--texts", TEXTS, "--limit", "30", "--csv"],
    "gold": ["find", "--gold", "sample_inputs/treebank.conllu", "--csv"],
    "check": ["check", "any.entropy < 2", "L1H6.entropy > 9", "--texts", TEXTS, "--limit", "20", "--json"],
}


def refusal(folder, words):
    """The sentence with which a command refuses split heads."""
    said = StringIO()
    sys.argv[1:] = [*words, "-m", folder, "--device-map", SPLIT]
    with redirect_stderr(said), suppress(SystemExit):
        main()
    return said.getvalue().strip()


def ask(folder):
    """In each process: every command, and how many batches were measured."""
    number, batches, measure = os.environ["RANK"], [], corpus.CorpusWork._measure_job
    corpus.CorpusWork._measure_job = lambda work, job: batches.append(job.number) or measure(work, job)
    for name, words in ASKED.items():
        printed, code = StringIO(), 0
        sys.argv[1:] = [*words, "-m", folder, "--device-map", SPLIT]
        with redirect_stdout(printed):
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
        Path(folder, f"{name}-{number}").write_text(f"{code}\n{printed.getvalue()}", "utf-8")
    refused = [
        refusal(folder, ["ablate", "The cat sat."]),
        refusal(folder, ["show", "A cat.", "--weighting", "norm"]),
    ]
    Path(folder, f"refused-{number}").write_text("\n".join(refused))
    Path(folder, f"batches-{number}").write_text(
        f"{batches}\n{fingerprint(load(folder, device_map=SPLIT).module)}"
    )
    with together(2):  # the first process holds the store, which the others need until here
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model, and beside it what four processes printed of it."""
    place = llama_of_eight_heads(tmp_path_factory.mktemp("model"))
    command = [sys.executable, "-m", "tests.questions.corpus.test_tensor_parallel", place]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return place


def close(one, other):
    """The same words, and numbers that differ by at most 1e-5, relative to those above 1."""
    try:
        return float(one) == pytest.approx(float(other), rel=1e-5, abs=1e-5)
    except ValueError:
        return one == other


def rows(printed):
    """The lines of a table by their kind, layer, head, label and direction."""
    keys = ("kind", "layer", "head", "label", "direction")
    return {tuple(row.get(key) for key in keys): row for row in csv.DictReader(StringIO(printed))}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.subprocess
def test_two_groups_that_split_heads_equal_one_process(folder, run):
    for name, words in ASKED.items():
        alone = run(*words, "-m", folder)
        printed, *others = (Path(folder, f"{name}-{number}").read_text("utf-8") for number in range(4))
        assert others == [f"{alone.code}\n"] * 3
        assert printed.startswith(f"{alone.code}\n")
        if name == "check":
            assert alone.code == 1
            assert printed.count('"holds": true') == 1
            continue
        found, expected = rows(printed.removeprefix("0\n")), rows(alone.out)
        assert found.keys() == expected.keys()
        assert len(found) >= 24
        for key, row in expected.items():
            assert all(
                close(found[key][column], value) for column, value in row.items() if column != "printed"
            )
    measured = [Path(folder, f"batches-{number}").read_text() for number in range(4)]
    assert measured[0] == measured[1]  # the same batches
    assert measured[2] == measured[3]
    assert fingerprint(load(str(folder)).module) in measured[0]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.subprocess
def test_predictions_and_weightings_of_split_heads_are_refused(folder):
    for number in range(4):
        said = Path(folder, f"refused-{number}").read_text().splitlines()
        assert len(said) == 2
        assert all("tensor parallelism splits the heads over processes" in each for each in said)


def test_split_heads_without_processes_is_refused(tmp_path):
    place = gpt2(tmp_path)
    with pytest.raises(ModelError, match="torchrun --nproc-per-node 2 -m attnscope"):
        load(place, device_map="tp:2")
    for wrong in ("tp:1", "tp:", "tp:x"):
        with pytest.raises(ModelError, match="write tp:N"):
            load(place, device_map=wrong)


if __name__ == "__main__":  # a process that has run nothing, which torch asks of its forks
    hf.AutoModelForCausalLM.from_pretrained(sys.argv[1])  # imports for all what they need
    sys.exit(sum(in_two(ask, *sys.argv[1:], count=4)))
