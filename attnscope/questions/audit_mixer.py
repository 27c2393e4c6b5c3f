"""Names the modules that mix tokens outside captured attention."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from torch import nn

from attnscope.attention import Site
from attnscope.capture.lineage.functions import ELEMENTWISE
from attnscope.capture.lineage.layout import CHANNELS
from attnscope.capture.placing.without_attention import ATTENTION, INSTEAD, is_torchs_own
from attnscope.capture.record import pattern
from attnscope.questions.sentences import number_ranges
from attnscope.records import Meaning, record


def is_inside(path: str, other: str) -> bool:
    """Whether a module is inside another."""
    return path != other and (not other or path.startswith(f"{other}."))


MISSED = "attention that was not captured"
BETWEEN_CHANNELS = "attention from channel to channel"

FUNCTIONS = (
    ("a Fourier transform", r"fft"),
    ("a recurrence", r"lstm|gru|rnn_(tanh|relu)|cumsum|cumprod|scan"),
    ("a convolution", r"conv\d?d?|conv_transpose|unfold"),
    (MISSED, r"attention|softmax"),
)
"""Kinds of token mixing, with fragments of torch's function names; the first match counts."""

A_PRODUCT, A_CHOICE = "a matrix product", "a choice among tokens"
ARITHMETIC = (A_PRODUCT, "a sum", "a product")
"""Functions that attention uses too: they name a mixer that is not called attention."""

STEPS = (
    ("a normalization over tokens", r"(group|instance|batch)_norm|^normalize$|vector_norm"),
    ("pooling", r"pool|^(mean|sum|amax|max|amin|min|std|var)$|interpolate|grid_sample"),
    (A_PRODUCT, r"linear|matmul|mm$|^mv$|einsum|dot"),
    ("ids that are made of several tokens", r"embedding"),
    (A_CHOICE, r"getitem|gather|select|scatter|index|where|sort|topk|take|masked_fill"),
    (ARITHMETIC[1], r"^_*i?r?(add|sub)_*$|^lerp_?$"),
    (ARITHMETIC[2], r"^_*i?r?(mul|div|truediv|pow)_*$"),
)
"""The same for single functions seen to mix tokens."""

CLASSES = ((r"merg|downsampl|pool", "pooling"), (r"scaler", "a normalization over tokens"))
"""Fragments of class names, beside those of layers without attention."""

NO_MIXING = ELEMENTWISE | {
    "__get__",
    "__iadd__",
    "add_",
    "__isub__",
    "sub_",
    "relu",
    "gelu",
    "silu",
    "sigmoid",
}
"""Functions that only move numbers."""


@record("a module")
class Mixer:
    """A module through which tokens reach each other outside captured attention."""

    path: Annotated[str, Meaning("its path")]
    type: Annotated[str, Meaning("its Python class")]
    layer: Annotated[int | None, Meaning("the number in its path, if there is just one")]
    way: Annotated[str | None, Meaning("by what it mixes tokens, where that is known")]


def describe_mixers(mixers: Sequence[Mixer], held: int) -> tuple[str, ...]:
    """What mixes tokens beside ``held`` captured calls, in words, equal modules together."""
    sorts: dict[tuple[str, str, str | None], list[Mixer]] = {}
    for mixer in mixers:
        sorts.setdefault((pattern(mixer.path), mixer.type, mixer.way), []).append(mixer)
    sentences = []
    for (path, kind, way), alike in sorts.items():
        layers = {mixer.layer for mixer in alike if mixer.layer is not None}
        where = f"{path or 'the model itself'} ({kind})"
        if layers:
            where = f"layer{'s' * (len(layers) > 1)} {number_ranges(layers)}, {where},"
        many = len(alike) > 1
        verb = "mix" if many else "mixes"
        sentences.append(f"{where} {verb} tokens {f'by {way}' if way else 'in a way of its own'} as well")
    missed = sum(mixer.way == MISSED for mixer in mixers)
    if missed:
        sentences.append(f"{missed:,} of {missed + held:,} attention calls were not captured")
    return tuple(sentences)


def name_mixers(
    root: nn.Module,
    paths: Sequence[str],
    functions: Mapping[str, set[str]],
    mixing: Mapping[str, set[str]],
    sites: Sequence[Site],
    hidden: Mapping[str, str],
) -> tuple[Mixer, ...]:
    """The mixers at these paths, each once.

    ``functions`` are the torch functions that ran in each module itself, ``mixing`` those that mixed
    tokens; ``hidden`` says why attention that was seen is not shown.

    A torch module is named by the model's module around it, and a part of a mixer by the whole, if that
    holds no captured attention.
    """
    attending = {site.name for site in sites}

    def is_bare(path: str) -> bool:
        return bool(path) and not any(name == path or is_inside(name, path) for name in attending)

    def only_adds(path: str) -> bool:
        return any(is_inside(other, path) for other in paths) and functions.get(path, set()) <= NO_MIXING

    named: dict[str, Mixer] = {}
    for path in paths:
        if only_adds(path):  # what others in it mixed in two ways
            continue
        owner = path
        while is_torchs_own(root.get_submodule(owner)) and is_bare(parent := owner.rpartition(".")[0]):
            owner = parent
        if is_torchs_own(root.get_submodule(owner)):
            owner = path
        whole = next((other for other in paths if is_inside(owner, other) and is_bare(other)), owner)
        if whole not in named:
            way = _tell(functions.get(path, set()), mixing.get(path, set()))
            way = [BETWEEN_CHANNELS] if hidden.get(path) == CHANNELS else way
            named[whole] = _mixer(root, whole, way, is_bare(whole))
    return tuple(named.values())


def sorts(ran: Collection[str]) -> bool:
    """Whether one of the functions sorts."""
    return any(re.search(r"sort|topk", name) for name in ran)


def only_choose(mixed: Collection[str]) -> bool:
    """Whether functions that mixed tokens only selected among them."""
    return all(_ways({name}, (*FUNCTIONS, *STEPS)) == [A_CHOICE] for name in mixed)


def _tell(ran: set[str], mixed: set[str]) -> list[str]:
    """The kinds of the functions that mixed tokens; a product may be part of another kind around it."""
    steps = _ways(mixed, STEPS)
    around = _ways(ran, FUNCTIONS) if not mixed or A_PRODUCT in steps else []
    return _ways(mixed, FUNCTIONS) + around + steps


def _ways(names: set[str], known: Sequence[tuple[str, str]]) -> list[str]:
    return [way for way, pattern in known if any(re.search(pattern, name) for name in names)]


def _mixer(root: nn.Module, path: str, ways: list[str], bare: bool) -> Mixer:
    """One mixer; if ``bare``, it holds no captured attention."""
    module = root.get_submodule(path)
    name = type(module).__name__
    if path and not is_torchs_own(module):  # a whole model's name tells what is in it
        ways = [way for names, way in (*INSTEAD, *CLASSES) if re.search(names, name, re.I)] + ways
        if bare and ATTENTION.search(name) and (not ways or ways[0] in ARITHMETIC):
            ways = [MISSED]
    numbers = [int(part) for part in path.split(".") if part.isdigit()]
    return Mixer(path, name, numbers[0] if len(numbers) == 1 else None, next(iter(ways), None))
