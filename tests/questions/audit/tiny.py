"""Tiny random models to audit, and a capture that misses a call."""

import contextlib

import torch

from attnscope.capture.recorder import Recorder
from attnscope.models import ModelInput
from attnscope.models.model import Model
from attnscope.questions.audit import audit

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
}
IDS = torch.randint(5, 55, (1, 13), generator=torch.Generator().manual_seed(1))


class Bare(Model):
    """A module without a tokenizer."""

    def __init__(self, module):
        super().__init__(type(module).__name__, module, None)

    def prepare(self, *texts, **how):
        raise NotImplementedError


def audited(module, *arguments, **inputs):
    """The audit of a module on ids of 13 tokens, or on these tensors."""
    if not arguments and not inputs:
        inputs = {"input_ids": IDS}
    return audit(Bare(module), ModelInput(inputs, {}, (), arguments=arguments))


@contextlib.contextmanager
def missing(path):
    """A capture that misses whatever attends at one module."""
    take = Recorder.take

    def take_others(recorder, capture, name, *more):
        if name != path:
            return take(recorder, capture, name, *more)
        recorder.seen += 1  # so that nobody looks for it in what the module returns

    Recorder.take = take_others
    try:
        yield
    finally:
        Recorder.take = take
