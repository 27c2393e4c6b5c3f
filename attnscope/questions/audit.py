"""Audit: does all mixing of tokens go through captured attention? Tokens are changed one at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from attnscope.attention import Site
from attnscope.capture.freeze import (
    A_PRODUCT,
    BETWEEN_CHANNELS,
    MIXING_PATTERNS,
    NOT_CAPTURED,
    STEP_PATTERNS,
    UNSPECIFIC,
    is_inside,
    mixing_of,
)
from attnscope.capture.lineage.layout import CHANNELS
from attnscope.capture.placing.without_attention import ATTENTION, INSTEAD, is_torchs_own
from attnscope.capture.record import is_within, pattern
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.models.seal import Search, Setup
from attnscope.records import Meaning, Parts, derived, record
from attnscope.text import number_ranges

CLASSES = ((r"merg|downsampl|pool", "pooling"), (r"scaler", "a normalization over tokens"))
"""Fragments of class names, beside those of layers without attention."""


@record("a module")
class Mixer:
    """A module through which tokens reach each other outside captured attention."""

    path: Annotated[str, Meaning("its path")]
    type: Annotated[str, Meaning("its Python class")]
    layer: Annotated[int | None, Meaning("the number in its path, if it has exactly one")]
    way: Annotated[str | None, Meaning("how it mixes tokens, if known")]


NUMBER_OR_NONE = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@record("an attention call")
class FrozenCall:
    """A call whose output was frozen in every pass."""

    site: Annotated[
        Site,
        Parts(
            name="a module's path",
            kind=Meaning("what it is", shape=str),
            layer=Meaning("its number", shape=NUMBER_OR_NONE),
        ),
    ]


@record("whether all mixing of tokens is shown (--audit)", "info")
class Audit:
    """The result: the frozen attention calls, and the modules that mix tokens outside them."""

    sites: tuple[Site, ...]
    mixers: Annotated[tuple[Mixer, ...], Meaning("modules through which another token still moves")]

    @derived("calls whose output was frozen")
    def held(self) -> tuple[FrozenCall, ...]:
        return tuple(map(FrozenCall, self.sites))

    @derived("whether it is")
    def complete(self) -> bool:
        """Whether all mixing between tokens goes through captured attention."""
        return not self.mixers

    @derived("the same in words")
    def sentences(self) -> tuple[str, ...]:
        calls = f"{len(self.sites):,} attention call{'s' * (len(self.sites) != 1)}"
        if self.complete:
            return (f"all mixing between tokens goes through the attention that is shown: {calls}",)
        groups: dict[tuple[str, str, str | None], list[Mixer]] = {}  # equal modules together
        for mixer in self.mixers:
            groups.setdefault((pattern(mixer.path), mixer.type, mixer.way), []).append(mixer)
        sentences = []
        for (path, kind, way), alike in groups.items():
            layers = {mixer.layer for mixer in alike if mixer.layer is not None}
            where = f"{path or 'the model itself'} ({kind})"
            if layers:
                where = f"layer{'s' * (len(layers) > 1)} {number_ranges(layers)}, {where},"
            verb = "mix" if len(alike) > 1 else "mixes"
            sentences.append(f"{where} {verb} tokens {f'by {way}' if way else 'in an unknown way'} as well")
        missed = sum(mixer.way == NOT_CAPTURED for mixer in self.mixers)
        if missed:
            sentences.append(f"{missed:,} of {missed + len(self.sites):,} attention calls were not captured")
        return tuple(sentences)


def audit(model: Model, prepared: ModelInput) -> Audit:
    """Run the model with one token changed at a time, and name what mixes tokens outside its attention."""
    if prepared.replay is not None:
        raise InputError("an audit runs the model again: give a text, not a recorded pass")
    search = Search(model, prepared)
    paths = search.find()
    mixed = search.find_functions(paths, Setup(search.frozen))
    unexplained = [path for path in paths if path not in mixed]  # what they chose by is frozen by now
    for setup in {search.mixers[path] for path in unexplained}:
        same = [path for path in unexplained if search.mixers[path] == setup]
        mixed |= search.find_functions(same, setup)
    return Audit(search.sites, name_mixers(search, paths, mixed))


def name_mixers(search: Search, paths: Sequence[str], mixing: Mapping[str, set[str]]) -> tuple[Mixer, ...]:
    """The mixers at these paths, each once, by the functions that ran in them or mixed tokens there.

    A torch module is named by the model's module around it, and a part of a mixer by the whole, if that
    holds no captured attention.
    """
    mixers: dict[str, Mixer] = {}
    for path in paths:
        owner = _owner_of(search, path)
        containing = (other for other in paths if is_inside(owner, other) and _is_bare(search, other))
        whole = next(containing, owner)
        if whole not in mixers:
            numbers = [int(part) for part in whole.split(".") if part.isdigit()]
            layer = numbers[0] if len(numbers) == 1 else None
            ways = _ways_by_name(search, whole, _ways_by_functions(search, path, mixing.get(path, set())))
            name = type(search.module.get_submodule(whole)).__name__
            mixers[whole] = Mixer(whole, name, layer, next(iter(ways), None))
    return tuple(mixers.values())


def _is_bare(search: Search, path: str) -> bool:
    """Whether a module, not the whole model, holds no captured attention."""
    return bool(path) and not any(is_within(site.name, path) for site in search.sites)


def _owner_of(search: Search, path: str) -> str:
    """The model's own module around a torch module; the torch module where that holds captured attention."""
    owner, module = path, search.module.get_submodule
    while is_torchs_own(module(owner)) and _is_bare(search, parent := owner.rpartition(".")[0]):
        owner = parent
    return path if is_torchs_own(module(owner)) else owner


def _ways_by_functions(search: Search, path: str, mixed: set[str]) -> list[str]:
    """The kinds of mixing that the functions of a module are, those that mixed tokens first."""
    if search.first.hidden.get(path) == CHANNELS:
        return [BETWEEN_CHANNELS]
    steps = mixing_of(mixed, STEP_PATTERNS)
    # a product may be part of another kind around it
    around = search.first.functions.get(path, set()) if not mixed or A_PRODUCT in steps else set()
    return mixing_of(mixed, MIXING_PATTERNS) + mixing_of(around, MIXING_PATTERNS) + steps


def _ways_by_name(search: Search, path: str, ways: list[str]) -> list[str]:
    """The kinds of mixing with those first that the name of a module's class tells."""
    module = search.module.get_submodule(path)
    if not path or is_torchs_own(module):  # a whole model's name tells what is in it
        return ways
    name = type(module).__name__
    ways = [way for names, way in (*INSTEAD, *CLASSES) if re.search(names, name, re.I)] + ways
    is_attention = _is_bare(search, path) and ATTENTION.search(name) is not None
    return [NOT_CAPTURED] if is_attention and (not ways or ways[0] in UNSPECIFIC) else ways
