"""Heads split over two processes by tensor parallelism equal those of one process."""

import json
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as distributed
import torch.nn.functional as F
import transformers as hf
from torch import nn

import attnscope
from attnscope.capture.placing import split_heads
from attnscope.errors import ModelError
from attnscope.models.seal import UNTESTED_NOTE
from tests.models.folders import llama_of_eight_heads
from tests.questions.corpus.test_processes import in_two

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]

TEXT = "The cat sat on the mat, and words look back at words."
WAYS = ("sdpa", "eager")


class Biased(nn.Module):
    """Attention with a bias for each head, of which a process has those of its heads."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(4, 6, 6))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        heads = q.shape[1]
        first = distributed.get_rank() * heads if heads < 4 else 0
        bias = self.bias[first : first + heads]
        return F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2)


def seen(run):
    """What a run says of every head, and one map."""
    table = run.stats().frame().sort_values(["layer", "head"])
    return json.loads(table.to_json()), run.head("L1H3").weights.tolist(), list(run.notes)


def look(folder, way, **options):
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=way, **options).eval()
    return attnscope.wrap(model, hf.AutoTokenizer.from_pretrained(folder)).read(TEXT)


def refusal(ask):
    try:
        ask()
    except ModelError as error:
        return str(error)
    return ""


def biased():
    torch.manual_seed(0)
    return Biased().eval(), torch.randn(2, 6, 16)


def main(folder):
    """Two processes with half of the heads each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    from transformers.distributed import DistributedConfig

    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    number, kept = distributed.get_rank(), {}
    for way in WAYS:
        run = look(folder, way, distributed_config=DistributedConfig(tp_size=2))
        kept[way] = seen(run)
        kept["cut"] = refusal(lambda run=run: run.cut("* -> *"))
    model, x = biased()
    parallelize_module(model, init_device_mesh("cpu", (2,)), dict.fromkeys("qkv", ColwiseParallel()))
    with torch.inference_mode():
        with attnscope.record(model) as run:
            model(x)
        kept["biased"] = run.head("L0H3").weights.tolist()
        split_heads.WAIT = 1.0
        if number == 0:  # alone, and then with the other one
            kept["alone"] = refusal(lambda: record_alone(model, x))
        model(x)
    Path(folder, f"seen-{number}.json").write_text(json.dumps(kept))
    distributed.destroy_process_group()


def record_alone(model, x):
    with attnscope.record(model):
        model(x)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return llama_of_eight_heads(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def ran(folder):
    """What each of both processes saw."""
    command = [sys.executable, "-m", "tests.capture.placing.test_split_heads", folder]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(Path(folder, f"seen-{number}.json").read_text()) for number in range(2)]


@pytest.mark.parametrize("way", WAYS)
def test_tensor_parallel_processes_have_single_process_scores(ran, folder, way):
    table, weights, notes = seen(look(folder, way))
    for one in ran:
        theirs, map_, told = one[way]
        assert told == [
            *notes,
            UNTESTED_NOTE.format(reason="parts of the model are on other devices"),
        ]
        np.testing.assert_allclose(map_, weights, atol=1e-5)
        assert theirs.keys() == table.keys()
        for name, column in table.items():
            assert len(column) == 24
            values = list(theirs[name].values())
            if isinstance(values[0], float):
                np.testing.assert_allclose(values, list(column.values()), atol=1e-5)
            else:
                assert values == list(column.values())


def test_per_head_biases_join_across_processes(ran):
    model, x = biased()
    q, k = ((part(x).double().unflatten(-1, (4, 4)))[:, :, 3].detach() for part in (model.q, model.k))
    scores = (q @ k.mT / 2 + model.bias[3].double()).detach().numpy()
    expected = (np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).mean(0)
    for one in ran:
        np.testing.assert_allclose(one["biased"], expected, atol=1e-6)


def test_recording_on_one_process_alone_is_noted(ran):
    assert "not all of them record this pass" in ran[0]["alone"]


def test_changing_split_heads_is_refused(ran):
    for one in ran:
        assert one["cut"].startswith("tensor parallelism splits the heads over processes")


if __name__ == "__main__":  # a process that has run nothing, which torch asks of its forks
    hf.AutoModelForCausalLM.from_pretrained(sys.argv[1])  # imports for both what they need
    sys.exit(sum(in_two(main, *sys.argv[1:])))
