"""Several processes that train one model: each measures its own batches, and the first one has the sums."""

import json
from pathlib import Path

import pytest
import transformers as hf

from tests.models.folders import gpt2, mean_entropy
from tests.notebook.watched_run import TEXTS, batch
from tests.questions.corpus.test_processes import launch

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    without = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
    return gpt2(tmp_path_factory.mktemp("model"), **without)


@pytest.fixture(scope="module")
def ran(folder):
    """What each of both processes saw, by how they share a model and what was watched."""
    ended = launch("tests.notebook.watched_run", folder, "ddp", "fsdp", "tp")
    assert ended.returncode == 0, ended.stderr
    return [json.loads(Path(folder, f"seen-{number}.json").read_text()) for number in range(2)]


@pytest.fixture(params=["ddp", "fsdp"])
def seen(request, ran):
    """What both processes saw, by what was watched."""
    ways = [
        {name.split()[1]: each for name, each in one.items() if name.startswith(request.param)} for one in ran
    ]
    assert all(len(one) == 4 for one in ways)
    return ways


def test_heads_that_are_split_over_processes_are_refused(ran):
    for one in ran:
        assert one["tp batch"]["stopped"].startswith("tensor parallelism splits the heads over processes")
        assert one["tp batch"]["figures"] == {}


def assert_entropies(folder, many, heads):
    """The figures of all heads are those of all texts, by the model's own eager attention."""
    model = hf.AutoModelForCausalLM.from_pretrained(folder)
    for head in heads:
        expected = mean_entropy(model, many, head["layer"], int(head["head"][-1]))
        assert head["figures"]["entropy"][0] == pytest.approx(expected, abs=1e-5)


def test_the_first_process_has_the_figures_of_all_batches(seen, folder):
    assert list(seen[0]["batch"]["figures"]) == ["0", "2", "4"]
    assert_entropies(folder, [batch(0, number) for number in range(2)], seen[0]["batch"]["figures"]["0"])
    assert seen[1]["batch"]["figures"] == {}


def test_probe_texts_have_the_figures_of_the_whole_model(seen, folder):
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    many = [tokenizer(text, return_tensors="pt").input_ids for text in TEXTS]
    assert_entropies(folder, many, seen[0]["texts"]["figures"]["0"])


def test_every_process_learns_what_it_learns_unwatched(seen):
    for one in seen:
        assert one["batch"]["learned"] == one["texts"]["learned"] == one["nothing"]["learned"]


def test_an_alarm_stops_all_processes_in_one_step(seen):
    assert [one["stop"]["steps"] for one in seen] == [1, 1]
    assert all(one["stop"]["stopped"].startswith("step 0: L0H0 has entropy") for one in seen)
