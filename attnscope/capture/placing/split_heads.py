"""Heads that tensor parallelism splits over processes: each call is made whole, with every head in its place.

All processes of the model run the same pass, and each records it. They exchange queries, keys and values, as
small as a cache, and never maps: rows of any head can then be read in any of them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import timedelta
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import HeldRows
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.rows.capture import CapturedCall
from attnscope.capture.rows.scores import ScoredRows, join_differences
from attnscope.capture.tracker import Pass, Tracker
from attnscope.errors import ModelError

SPLIT = "its heads are split over processes and cannot be joined: its weights are not shown"
ALONE = "not all of them record this pass: run the same code in each"
WAIT = 120.0  # seconds that a process waits for the others at the start of a pass
_passes = count()


def find_group(model: nn.Module) -> Any:
    """The processes over which tensor parallelism splits a model's weights; None if it does not."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    undone = any(isinstance(part, FSDPModule) for part in model.modules())  # one split, for each pass
    for weights in model.parameters():
        placements = weights.placements if isinstance(weights, DTensor) else ()
        axes = [axis for axis, one in enumerate(placements) if one.is_shard()]
        if isinstance(weights, DTensor) and len(axes) > undone:
            return weights.device_mesh.get_group(axes[-1])
    return None


def count_parts(model: nn.Module) -> int:
    """Over how many processes tensor parallelism splits a model's heads; 1 if it does not."""
    group = find_group(model)
    return 1 if group is None else group.size()


@cache
def _store() -> Any:
    from torch.distributed.rendezvous import rendezvous

    store, *_ = next(rendezvous("env://"))
    return store


def job_store(use: str) -> Any:
    """What all processes of torchrun can read and write: a store of its own, or of the first process."""
    distributed: Any = import_module("torch.distributed")
    return distributed.PrefixStore(f"attnscope {use}", _store())


def join_group(parts: int) -> None:
    """Join the ``parts`` processes of torchrun that split the heads of one model. Raises ``ModelError``."""
    import torch.distributed as distributed

    number, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if count % parts:
        needs = f"tp:{parts} splits the heads over {parts} processes, and a multiple of them may run"
        raise ModelError(f"{needs}, not {count}: torchrun --nproc-per-node {parts} -m attnscope ...")
    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store = job_store(f"heads {number // parts}")
        distributed.init_process_group(backend, store=store, rank=number % parts, world_size=parts)


def require_whole_heads(model: nn.Module, otherwise: str) -> None:
    """Raise ``ModelError`` if each process has some of the heads, numbered from 0."""
    if find_group(model) is not None:
        raise _refusal(otherwise)


def _refusal(reason: str) -> ModelError:
    return ModelError(f"tensor parallelism splits the heads over processes: {reason}")


class SplitHeads(Tracker):
    """Joins the heads of all processes in each call."""

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self.group = find_group(recorder.model)

    def begin(self) -> None:
        """Wait until all processes record the pass: one that does not would leave the others waiting."""
        if self.group is None:
            return
        import torch.distributed as distributed

        store, number = distributed.distributed_c10d._get_default_store(), next(_passes)
        store.set(f"attnscope/{number}/{distributed.get_rank()}", "")
        ranks = distributed.get_process_group_ranks(self.group)
        try:
            store.wait([f"attnscope/{number}/{rank}" for rank in ranks], timedelta(seconds=WAIT))
        except RuntimeError as error:
            raise _refusal(ALONE) from error
        store.delete_key(f"attnscope/{number - 1}/{distributed.get_rank()}")  # the others have seen it

    def on_capture(self, capture: CapturedCall) -> bool:
        """Pass the whole call on in the place of a part."""
        if self.group is None:
            return False
        with quietly():
            whole = self._join(capture)
        if whole is None:
            self.recorder.name(capture.name, SPLIT)
        else:
            self.recorder.emit(whole, self)
        return True

    def _join(self, capture: CapturedCall) -> CapturedCall | None:
        """A call with the heads of all processes, in their order; None if they cannot be joined."""
        import torch.distributed as distributed

        processes, read = distributed.get_world_size(self.group), capture.read
        calls: list[Any] = [None] * processes
        shape = type(read).__name__, capture.batch, capture.heads, len(capture.queries), len(capture.keys)
        distributed.all_gather_object(calls, (shape, capture.difference), self.group)
        if len({shape for shape, _ in calls}) > 1 or not isinstance(read, ScoredRows | HeldRows):
            return None
        heads = self._parts(read.call.query if isinstance(read, ScoredRows) else read.weights)
        if all(torch.equal(heads[0], part) for part in heads):
            return capture  # every process has all of them
        whole = torch.cat(heads, 1)
        if isinstance(read, HeldRows):
            read = HeldRows(whole, None if read.open_keys is None else self._all_heads(read.open_keys))
            key_heads = capture.key_heads * processes
        else:
            call, join = read.call, self._all_heads
            call = replace(call, query=whole, key=join(call.key), value=join(call.value))
            masks = tuple(join(each) if isinstance(each, Tensor) else each for each in call.masks)
            sinks = None if call.sinks is None else join(call.sinks)
            call = replace(call, biases=tuple(map(join, call.biases)), masks=masks, sinks=sinks)
            read, key_heads = ScoredRows(call), call.key.shape[1]
        return replace(
            capture,
            read=read,
            heads=whole.shape[1],
            key_heads=key_heads,
            values=None if capture.values is None else self._all_heads(capture.values),
            difference=join_differences([difference for _, difference in calls], capture.dtype),
        )

    def _all_heads(self, tensor: Tensor) -> Tensor:
        """A tensor with the heads of all processes; one for all heads stays as it is."""
        if tensor.ndim == 2:  # of queries and keys
            return tensor
        axis, parts = max(0, tensor.ndim - 3), self._parts(tensor)
        alike = tensor.shape[axis] == 1 and all(torch.equal(parts[0], part) for part in parts)
        return tensor if alike else torch.cat(parts, axis)

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        """That tensor of each process; all have one shape."""
        import torch.distributed as distributed

        sent = (tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor).detach().contiguous()
        parts = [torch.empty_like(sent) for _ in range(distributed.get_world_size(self.group))]
        distributed.all_gather(parts, sent, group=self.group)
        return [part.to(tensor.dtype) for part in parts]
