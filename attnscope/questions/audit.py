"""Audit: does all mixing of tokens go through captured attention? Tokens are changed one at a time."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from attnscope.attention import Site
from attnscope.capture import recording
from attnscope.capture.hooks.functions import original
from attnscope.capture.lineage.functions import ELEMENTWISE
from attnscope.capture.lineage.layout import CHANNELS
from attnscope.capture.placing.without_attention import ATTENTION, INSTEAD, is_torchs_own
from attnscope.capture.record import is_within, pattern
from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.models import Model, ModelInput
from attnscope.questions.audit_pass import (
    CallEnd,
    CallKey,
    FirstPass,
    Freeze,
    FunctionSteps,
    find_tensors,
    is_inside,
    places_moved,
    sorts,
)
from attnscope.questions.sentences import number_ranges
from attnscope.records import Meaning, Parts, derived, record

NO_TOKENS = re.compile(r"mask|type|segment|position|label|grid|bbox|lang|len|shape|size|time|cond", re.I)
"""Names of inputs that describe tokens without being tokens."""

SOUND = re.compile(r"feature|value|audio|spec|mel", re.I)
"""Names of inputs whose last axis may be time; with three axes, any other's is a token's state."""

SMALL = 4  # an axis no longer than this is texts or colours: a change applies to all of them


@dataclass(frozen=True)
class Perturbation:
    """A place in one input, by its name or position: an id, or a number of a picture, sound or state."""

    input: str | int
    at: int
    pieces: bool  # numbers of which many may belong to one token
    states: bool  # of a token, along the last axis

    def changed(self, prepared: ModelInput) -> ModelInput:
        """The same input with another token at this place."""
        field = _fields(prepared)[self.input].clone()
        if self.pieces:
            places = [slice(None) if size <= SMALL else self.at for size in field.shape]
            places[-1] = slice(None) if self.states else places[-1]
            top = float(field.abs().amax())
            field[tuple(places)] = top + 1 - field[tuple(places)]  # not shifted, which a norm would undo
        else:
            ids = _ids(field)
            before = ids[0, self.at].clone()
            others = [each for each in ids[0, _ordinary(field, prepared)] if not torch.equal(each, before)]
            ids[:, self.at] = others[len(others) // 2] if others else (before - 1).abs()
        if isinstance(self.input, str):
            return replace(prepared, inputs={**prepared.inputs, self.input: field})
        arguments = [*prepared.arguments]
        arguments[self.input] = field
        return replace(prepared, arguments=tuple(arguments))


def choose_perturbations(prepared: ModelInput) -> list[Perturbation]:
    """Neighbours, and places 2, 4, 8 ... further on, in inputs with tokens. Raises ``InputError``."""
    perturbations: list[Perturbation] = []
    for name, field in _fields(prepared).items():
        if field.dtype == torch.bool or not field.ndim or NO_TOKENS.search(str(name)):
            continue
        pieces = field.is_floating_point()
        states = pieces and field.ndim == 3 and not SOUND.search(str(name))
        shape = field.shape[:-1] if states else field.shape
        sizes = [size for size in shape if size > SMALL] if pieces else []
        places: Sequence[int] = range(min(sizes, default=0)) if pieces else _ordinary(field, prepared)
        reach = [0, *(2**power for power in range(len(places).bit_length()))]
        perturbations += (
            Perturbation(name, places[offset], pieces, states) for offset in reach if offset < len(places)
        )
    if len(perturbations) < 2:
        raise InputError("an audit changes one token at a time: give a text of several tokens")
    return perturbations


def _fields(prepared: ModelInput) -> dict[str | int, Tensor]:
    """Every tensor that the model is given, by its name or position."""
    return dict((*prepared.inputs.items(), *enumerate(prepared.arguments)))


def _ids(field: Tensor) -> Tensor:
    """A view of ids for one text, several texts, or several ids per place.  -> [any, token, ...]"""
    return field[None] if field.ndim == 1 else field


def _ordinary(field: Tensor, prepared: ModelInput) -> list[int]:
    """The places of ids that no tokenizer added."""
    tokens, length = prepared.tokens, _ids(field).shape[1]
    if len(tokens) != length:
        return list(range(length))
    return [place for place, token in enumerate(tokens) if not token.special]


MOST = 8  # most tokens of an input that are changed

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

INERT = ELEMENTWISE | {"__get__", "__iadd__", "add_", "__isub__", "sub_", "relu", "gelu", "silu", "sigmoid"}
"""Functions that mix no tokens by themselves."""


@record("a module")
class Mixer:
    """A module through which tokens reach each other outside captured attention."""

    path: Annotated[str, Meaning("its path")]
    type: Annotated[str, Meaning("its Python class")]
    layer: Annotated[int | None, Meaning("the number in its path, if there is just one")]
    way: Annotated[str | None, Meaning("by what it mixes tokens, where that is known")]


def _ways(names: set[str], known: Sequence[tuple[str, str]]) -> list[str]:
    return [way for way, pattern in known if any(re.search(pattern, name) for name in names)]


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
            sentences.append(f"{where} {verb} tokens {f'by {way}' if way else 'in a way of its own'} as well")
        missed = sum(mixer.way == MISSED for mixer in self.mixers)
        if missed:
            sentences.append(f"{missed:,} of {missed + len(self.sites):,} attention calls were not captured")
        return tuple(sentences)


def audit(model: Model, prepared: ModelInput) -> Audit:
    """Run the model with one token changed at a time, and name what mixes tokens outside its attention."""
    if prepared.replay is not None:
        raise InputError("an audit runs the model again: give a text, not a recorded pass")
    search = Search(model, prepared)
    paths = search.find()
    mixed = search.find_functions(paths, Setup(search.held))
    untold = [path for path in paths if path not in mixed]  # what they chose by is frozen by now
    for setup in {search.mixers[path] for path in untold}:
        mixed |= search.find_functions([path for path in untold if search.mixers[path] == setup], setup)
    return Audit(search.sites, search.name(paths, mixed))


class Setup(NamedTuple):
    """A round of passes: which modules it freezes, and the calls whose rows it changes instead of tokens."""

    held: frozenset[str] = frozenset()
    fresh: frozenset[CallKey] = frozenset()


class Search:
    """The passes of one audit; ``sites`` are the calls of the first, which records what the others freeze."""

    def __init__(self, model: Model, prepared: ModelInput) -> None:
        self.model, self.prepared = model, prepared
        self.perturbations = choose_perturbations(prepared)
        self.first = FirstPass()
        self.held: frozenset[str] = frozenset()
        self.mixers: dict[str, Setup] = {}  # by path: the round that found it
        self.module = original(model.module)
        self.paths = [path for path, _ in self.module.named_modules()]
        self.sites = self._run(prepared, Freeze(self.module, self.first))
        self._sorting: set[str] = set()  # modules that sort tokens, into an order that one around undoes

    def find(self) -> list[str]:
        """The paths of the modules that mix tokens themselves, in the order of the model.

        No token reaches what follows a captured call if it is unknown which of its rows belong to a
        token, so these rows are changed by hand: for all such calls at once, and if anything mixes then,
        for each alone, because equal rows of two calls may belong to different tokens (windows).
        """
        self.perturbations = self._distinct()
        while self._holds_more(Setup(self.held)):
            pass
        unasked = frozenset(self.first.calls.keys() - self.first.asked)
        self._try(Setup(self.held, unasked))
        if self._mixing() - self._sorting - self.held:
            for call in sorted(unasked):
                while self._holds_more(Setup(self.held, frozenset({call}))):
                    pass
        return [path for path in self.paths if path in self.mixers]

    def _holds_more(self, setup: Setup) -> bool:
        """Whether a round of passes shows what else the next one must freeze."""
        self._try(setup)
        mixing = self._mixing() - self._sorting
        new = mixing - self.held
        new = {path for path in new if not any(is_inside(other, path) for other in new)}  # innermost
        if undone := {path for path in new if self._is_undone(path)}:
            for path, names in self.find_functions(undone, setup).items():
                if all(_ways({name}, (*FUNCTIONS, *STEPS)) == [A_CHOICE] for name in names):
                    self._sorting.add(path)
            new -= self._sorting
        self.mixers = dict.fromkeys(new | (mixing & self.held), setup) | self.mixers
        self.held = self.held | {path for path in self.paths if pattern(path) in map(pattern, new)}
        return bool(new) or self.first.share_out()

    def _is_undone(self, path: str) -> bool:
        """Whether a module sorts tokens and an enclosing one, not the whole model, returns them unmixed."""
        if not sorts(self.first.functions.get(path, set())):
            return False
        moves = self.first.moves
        blurred = {place.module for place in moves.mixed | moves.unclear}
        clear = {place.module for place in moves.reached if place.end == "out"} - blurred - {""}
        return any(is_inside(path, outer) for outer in clear)

    def find_functions(self, paths: Collection[str], setup: Setup) -> dict[str, set[str]]:
        """The torch functions by which these modules mix tokens in such a round, by module."""
        steps = FunctionSteps(paths)
        if paths:
            self.first.begin()
            self._run(self.prepared, Freeze(self.module, self.first, setup.held, steps=steps))
            steps.moves.keeps = False
            self._try(setup, steps)
        return steps.find_mixing()

    def name(self, paths: Sequence[str], mixing: Mapping[str, set[str]]) -> tuple[Mixer, ...]:
        """The mixers at these paths, each once, by the functions that ran in them or mixed tokens there.

        A torch module is named by the model's module around it, and a part of a mixer by the whole, if that
        holds no captured attention.
        """
        root, functions = self.module, self.first.functions
        attending = {site.name for site in self.sites}

        def is_bare(path: str) -> bool:
            return bool(path) and not any(is_within(name, path) for name in attending)

        named: dict[str, Mixer] = {}
        for path in paths:
            ran = functions.get(path, set())
            if ran <= INERT and any(is_inside(other, path) for other in paths):
                continue  # it only adds what others in it mixed in two ways
            owner = path
            while is_torchs_own(root.get_submodule(owner)) and is_bare(parent := owner.rpartition(".")[0]):
                owner = parent
            if is_torchs_own(root.get_submodule(owner)):
                owner = path
            whole = next((other for other in paths if is_inside(owner, other) and is_bare(other)), owner)
            if whole not in named:
                mixed = mixing.get(path, set())
                steps = _ways(mixed, STEPS)  # a product may be part of another kind around it
                around = _ways(ran, FUNCTIONS) if not mixed or A_PRODUCT in steps else []
                ways = _ways(mixed, FUNCTIONS) + around + steps
                ways = [BETWEEN_CHANNELS] if self.first.hidden.get(path) == CHANNELS else ways
                module = root.get_submodule(whole)
                name = type(module).__name__
                if whole and not is_torchs_own(module):  # a whole model's name tells what is in it
                    ways = [way for names, way in (*INSTEAD, *CLASSES) if re.search(names, name, re.I)] + ways
                    if is_bare(whole) and ATTENTION.search(name) and (not ways or ways[0] in ARITHMETIC):
                        ways = [MISSED]
                numbers = [int(part) for part in whole.split(".") if part.isdigit()]
                layer = numbers[0] if len(numbers) == 1 else None
                named[whole] = Mixer(whole, name, layer, next(iter(ways), None))
        return tuple(named.values())

    def _distinct(self) -> list[Perturbation]:
        """One perturbation per token: for a patch, its first pixel."""
        if not any(perturbation.pieces for perturbation in self.perturbations):
            return _sample(self.perturbations)
        footprints = self._try(Setup())
        kept: dict[Perturbation, Tensor | None] = {}
        for each, marks in zip(self.perturbations, footprints, strict=True):
            alike = (other.pieces and _same_token(marks, theirs) for other, theirs in kept.items())
            if not (each.pieces and any(alike)):
                kept[each] = marks
        return _sample([*kept])

    def _try(self, setup: Setup, steps: FunctionSteps | None = None) -> list[Tensor | None]:
        """One pass per perturbation, or for some rows of the calls; returns the footprints of the tokens."""
        self.first.begin()
        passes = dict(enumerate(each.changed(self.prepared) for each in self.perturbations))
        if setup.fresh:  # neighbours, and rows 2, 4, 8 ... further on, of the calls' results
            results = (tensor for call in setup.fresh for tensor in find_tensors(self.first.calls[call][1]))
            longest = max((size for result in results for size in result.shape), default=0)
            rows = (0, *(2**power for power in range(MOST - 1)))
            passes = {row: self.prepared for row in rows if row < longest}
        footprints = []
        for number, prepared in passes.items():
            freeze = Freeze(self.module, self.first, setup.held, setup.fresh, number, steps)
            self._run(prepared, freeze)
            footprints.append(freeze.footprint)
        return footprints

    def _run(self, prepared: ModelInput, freeze: Freeze) -> tuple[Site, ...]:
        model = self.model
        with torch.random.fork_rng(devices=[]), torch.inference_mode(), model.threads(prepared):
            torch.manual_seed(0)  # all randomness is the same in each pass
            with recording(model.module, (), prepared.axes, warn=False) as record, freeze.watch(record):
                try:
                    run = getattr(model.module, prepared.entry)
                    run(*prepared.arguments, **prepared.inputs, **prepared.settings)
                except AttnscopeError:
                    raise
                except Exception as error:
                    said = f"{type(error).__name__}: {error}"
                    raise ModelError(f"{model.name} fails in an audit: {said}") from error
            return tuple(site.site for site in record.sites)

    def _mixing(self) -> set[str]:
        """The modules whose inputs depended on single tokens, and whose outputs mix them."""
        ends = self.first.moves.mixing()
        return {place.module for place in ends if not self._are_scores(place)} - self.first.modules

    def _are_scores(self, place: CallEnd) -> bool:
        """Whether a module returned the scores of a captured softmax around it."""
        shapes = {tensor.shape for tensor in self.first.moves.before[place]}
        return any(
            shapes == {weights.shape} and is_inside(place.module, owner) and is_within(path, owner)
            for (path, _), weights in self.first.softmaxes.items()
            for owner in self.first.written
        )


def _same_token(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two changes affect the same single place, along an axis of the first patches."""
    if one is None or other is None or one.shape != other.shape:
        return False
    both = zip(places_moved(one), places_moved(other), strict=True)
    return any(len(mine) > 1 and torch.equal(mine, theirs) and int(mine.sum()) == 1 for mine, theirs in both)


def _sample(perturbations: Sequence[Perturbation]) -> list[Perturbation]:
    """A limited number of perturbations of each input, near ones and far ones."""
    chosen: dict[Perturbation, None] = {}
    for name in dict.fromkeys(perturbation.input for perturbation in perturbations):
        alike = [perturbation for perturbation in perturbations if perturbation.input == name]
        chosen |= dict.fromkeys(alike[len(alike) * part // MOST] for part in range(MOST))
    return list(chosen)
