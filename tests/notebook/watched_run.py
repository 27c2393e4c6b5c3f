"""Runs of one of several processes, each with batches of its own, for ``test_processes``."""

import json
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
import transformers as hf
from torch import nn

import attnscope
from attnscope.errors import AttnscopeError

TEXTS = ["The cat sat on the mat.", "Words look back, and heads look at words.", "A cat."]
STEPS, EVERY, FEW = 5, 2, 3
WATCHED = ("nothing", "batch", "texts", "stop")


def batch(step, number):
    """What a process reads at a step: [text, token], more texts of a later one."""
    chosen = torch.Generator().manual_seed(10 * step + number)
    return torch.randint(1, 40, (FEW + number, 9), generator=chosen)


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


def weights(model):
    """All weights, of whatever share."""
    whole = (each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters())
    return [each.tolist() for each in whole]


def run(way, watched, folder):
    """Train, and tell what was seen and learned."""
    options: dict[str, Any] = {"every": EVERY, "measures": ["entropy"]}
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
            for steps in range(1, STEPS + 1):
                ids = batch(steps - 1, number)
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        except AttnscopeError as error:
            stopped = str(error)
    found = {} if log is None else {str(step): heads for step, heads in log.figures.items()}
    return {"figures": found, "stopped": stopped, "steps": steps, "learned": weights(model)}


def main(folder, *ways):
    """Run every way, watched and not, and write what each process saw."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    kept = {
        f"{way} {watched}": run(way, watched, folder)
        for way in ways
        for watched in (WATCHED if way != "tp" else ("batch",))
    }
    Path(folder, f"seen-{distributed.get_rank()}.json").write_text(json.dumps(kept))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
