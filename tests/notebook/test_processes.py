"""Several processes train one model: each measures its own batches, and the first has the sums."""

import json
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as distributed
import transformers as hf
from torch import nn

import attnscope
from attnscope.errors import AttnscopeError
from tests.models.folders import gpt2, mean_entropy
from tests.questions.corpus.test_processes import in_two

pytestmark = [pytest.mark.slow, pytest.mark.subprocess, pytest.mark.nightly]

TEXTS = ["The cat sat on the mat.", "Words look back, and heads look at words.", "A cat."]
WATCHED = ("nothing", "batch", "texts", "stop")


def batch(step, number):
    """What a process reads at a step: [text, token], more texts of a later one."""
    chosen = torch.Generator().manual_seed(10 * step + number)
    return torch.randint(1, 40, (3 + number, 9), generator=chosen)


def shared(way, model):
    """The model as several processes train it."""
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

    def split_rows(name, module, mesh):
        """What tensor parallelism does to the weights of a projection."""
        split = distribute_tensor(module.weight.data, mesh, [Shard(0)])
        module.register_parameter("weight", nn.Parameter(split))

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    if way == "tp":
        for block in model.transformer.h:
            distribute_module(block.attn.c_proj, mesh, split_rows)
        return model
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def run(way, watched, folder):
    """Train, and tell what was seen and learned."""
    options = {"every": 2, "measures": ["entropy"]}
    if watched == "texts":
        options |= {"texts": TEXTS, "tokenizer": hf.AutoTokenizer.from_pretrained(folder)}
    if watched == "stop":
        options |= {"alarm": "entropy > 0.1", "on_alarm": "stop"}
    number = distributed.get_rank()
    model = shared(way, hf.AutoModelForCausalLM.from_pretrained(folder).train())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    stopped, steps = "", 0
    torch.manual_seed(number)
    with nullcontext() if watched == "nothing" else attnscope.watch(model, **options) as log:
        try:
            for steps in (1, 2, 3):
                ids = batch(steps - 1, number)
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        except AttnscopeError as error:
            stopped = str(error)
    found = {} if log is None else {str(step): heads for step, heads in log.scores.items()}
    whole = (each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters())
    learned = [each.tolist() for each in whole]
    return {"scores": found, "stopped": stopped, "steps": steps, "learned": learned}


def main(folder, *ways):
    """Run every way, watched and not, and write what each process saw."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    kept = {
        way: {watched: run(way, watched, folder) for watched in (WATCHED if way != "tp" else ("batch",))}
        for way in ways
    }
    Path(folder, f"seen-{distributed.get_rank()}.json").write_text(json.dumps(kept))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    without = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
    return gpt2(tmp_path_factory.mktemp("model"), **without)


@pytest.fixture(scope="module")
def ran(folder):
    """What each of both processes saw, by how they share a model and what was watched."""
    command = [sys.executable, "-m", "tests.notebook.test_processes", folder, "ddp", "fsdp", "tp"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(Path(folder, f"seen-{number}.json").read_text()) for number in range(2)]


@pytest.fixture(params=["ddp", "fsdp"])
def seen(request, ran):
    """What both processes saw, by what was watched."""
    return [one[request.param] for one in ran]


def test_watching_tensor_parallel_heads_is_refused(ran):
    for one in ran:
        assert one["tp"]["batch"]["stopped"].startswith("tensor parallelism splits the heads over processes")
        assert one["tp"]["batch"]["scores"] == {}


@pytest.mark.parametrize("watched", ["batch", "texts"])
def test_first_process_has_scores_of_all_processes(seen, folder, watched):
    assert [list(one[watched]["scores"]) for one in seen] == [["0", "2"], []]
    model, tokenizer = (each.from_pretrained(folder) for each in (hf.AutoModelForCausalLM, hf.AutoTokenizer))
    texts = [tokenizer(text, return_tensors="pt").input_ids for text in TEXTS]
    many = texts if watched == "texts" else [batch(0, number) for number in range(2)]
    for head in seen[0][watched]["scores"]["0"]:
        expected = mean_entropy(model, many, head["layer"], int(head["head"][-1]))
        assert head["scores"]["entropy"][0] == pytest.approx(expected, abs=1e-5)


def test_training_of_every_process_is_unchanged_by_watching(seen):
    for one in seen:
        assert one["batch"]["learned"] == one["texts"]["learned"] == one["nothing"]["learned"]


def test_alarm_stops_all_processes_in_one_step(seen):
    assert [one["stop"]["steps"] for one in seen] == [1, 1]
    assert all(one["stop"]["stopped"].startswith("step 0: L0H0 has entropy") for one in seen)


if __name__ == "__main__":  # a process that has trained nothing, which torch asks of forks that train
    hf.AutoModelForCausalLM.from_pretrained(sys.argv[1])  # imports for both what they need
    sys.exit(sum(in_two(main, *sys.argv[1:])))
