"""Whether the attention shown is all that mixes tokens, by experiment: its outputs stay, a token changes.

The outputs of modules that were found to mix stay, too. Where two tokens then move one number, and did not
where it was computed, they were mixed. ``info --audit`` looks everywhere. The seal is tested once per model,
by a few passes over a short text: every answer names what mixes before attention, or between its layers.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass, replace
from time import thread_time
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from attnscope.attention import Site
from attnscope.axes import PICTURE_ID, SOUND_ID
from attnscope.capture import recording
from attnscope.capture.freeze import (
    A_CHOICE,
    INERT,
    MIXING_PATTERNS,
    STEP_PATTERNS,
    TOO_LONG,
    CallEnd,
    CallKey,
    FirstPass,
    Freeze,
    FunctionSteps,
    Moves,
    buffers_put_back,
    find_tensors,
    is_inside,
    mixing_of,
    places_changed,
    sorts,
)
from attnscope.capture.hooks.functions import Function, original
from attnscope.capture.hooks.modules import CACHES
from attnscope.capture.placing.between import ACROSS
from attnscope.capture.placing.without_attention import describe, is_training, why_opaque
from attnscope.capture.record import NUMBER, Record, SiteRecord, is_within, module_lists, name_mixers, pattern
from attnscope.errors import AttnscopeError, InputError, ModelError, first_line
from attnscope.limits import SEAL_BYTES, SEAL_SECONDS, foreign_output
from attnscope.models.identity import identify_model, identify_programs
from attnscope.models.inputs import Limit, ModelInput
from attnscope.storage.cache import find_seal, hash_key, store_seal

NO_TOKENS = re.compile(r"mask|type|segment|pos|label|grid|bbox|lang|len|shape|size|time|cond", re.I)
"""Names of inputs that describe tokens without being tokens."""

SOUND = re.compile(r"feature|value|audio|spec|mel", re.I)
"""Names of inputs whose last axis may be time; with three axes, any other's is a token's state."""

SMALL_AXIS = 4  # an axis no longer than this is texts or colours: a change applies to all of them
CHANGED_OFFSETS = (0, 1, 4, 6)  # every distance from 1 to 6: a convolution may be short, or have gaps


class Field(NamedTuple):
    """An input that holds tokens."""

    name: str | int
    tensor: Tensor
    axis: int  # of the tokens: 0 or 1, if they are ids or states
    pieces: bool  # numbers of which many may belong to one token
    states: bool  # of a token, along the last axis

    @property
    def places(self) -> int:
        """How many tokens an input of ids or states has, or along how many places a picture or sound."""
        sizes = [size for size in self.tensor.shape[self.tensor.ndim > 3 :] if size > SMALL_AXIS]
        return min(sizes, default=0) if self.pieces and not self.states else self.lined.shape[1]

    @property
    def lined(self) -> Tensor:
        """A view of ids or states.  -> [any, token, ...]"""
        return self.tensor[None] if self.tensor.ndim == 1 else self.tensor.movedim(self.axis, 1)


def token_fields(prepared: ModelInput, lengths: Collection[int] = ()) -> list[Field]:
    """The inputs with tokens; ``lengths`` are those of known sequences, which tell tokens from texts."""
    fields = []
    for name, tensor in prepared.tensors.items():
        if tensor.dtype == torch.bool or not tensor.ndim or NO_TOKENS.search(str(name)):
            continue
        pieces, sizes = tensor.is_floating_point(), [*tensor.shape[:2]]
        sequence = len(sizes) > 1 and sizes[1] in lengths
        states = pieces and tensor.ndim == 3 and (sequence or not SOUND.search(str(name)))
        first = (
            len(sizes) > 1
            and not sequence
            and (sizes[0] in lengths or (states and sizes[1] <= SMALL_AXIS < sizes[0]))
        )
        field = Field(name, tensor, 0 if first else 1, pieces, states)
        if not states or field.places > 1:  # else it is of all tokens
            fields.append(field)
    return fields


@dataclass(frozen=True, eq=False)
class Perturbation:
    """A place in one input, by its name or position: an id, or a number of a picture, sound or state."""

    field: Field
    at: int
    column: int | None = None  # of a picture; else it is the same place along every axis

    def changed(self, prepared: ModelInput) -> ModelInput:
        """The same input with another token at this place."""
        field = self.field._replace(tensor=prepared.tensors[self.field.name].clone())
        tensor, whole = field.tensor, field.lined
        if field.states:  # not shifted, which a norm would undo
            whole[:, self.at] = float(tensor.abs().amax()) + 1 - whole[:, self.at]
        elif field.pieces:
            places = [slice(None) if size <= SMALL_AXIS else self.at for size in tensor.shape]
            places[0] = slice(None) if tensor.ndim > 3 else places[0]  # of a batch
            places[-1] = places[-1] if self.column is None else self.column
            tensor[tuple(places)] = float(tensor.abs().amax()) + 1 - tensor[tuple(places)]
        else:
            before = whole[0, self.at].clone()
            others = [each for each in whole[0, _ordinary(field, prepared)] if not torch.equal(each, before)]
            whole[:, self.at] = others[len(others) // 2] if others else (before - 1).abs()
        return prepared.with_tensors({field.name: tensor})


def choose_perturbations(prepared: ModelInput) -> list[Perturbation]:
    """Neighbours, and places 2, 4, 8 ... further on, in inputs with tokens. Raises ``InputError``."""
    perturbations: list[Perturbation] = []
    for field in token_fields(prepared):
        places = range(field.places) if field.pieces else _ordinary(field, prepared)
        reach = [0, *(2**power for power in range(len(places).bit_length()))]
        perturbations += (Perturbation(field, places[offset]) for offset in reach if offset < len(places))
    if len(perturbations) < 2:
        raise InputError("an audit changes one token at a time: give a text of several tokens")
    return perturbations


def choose_few(prepared: ModelInput, lengths: Collection[int] = ()) -> list[ModelInput]:
    """Four near tokens, changed in all inputs at once; none if it is not known where one is."""
    inputs: list[list[Perturbation]] = []
    for field in token_fields(prepared, lengths):
        if field.pieces and not field.states:
            if not (changes := _patches(field, prepared)):
                return []
        else:
            places = range(field.places) if field.pieces else _ordinary(field, prepared)
            room = len(places) - CHANGED_OFFSETS[-1]
            start = next(
                (at for at in range(room // 2, room) if places[at] % SMALL_AXIS == 0), max(0, room // 2)
            )
            changes = [
                Perturbation(field, places[start + at]) for at in CHANGED_OFFSETS if start + at < len(places)
            ]
        inputs.append(changes)
    return change_together(prepared, inputs)


def change_together(prepared: ModelInput, inputs: Sequence[Sequence[Perturbation]]) -> list[ModelInput]:
    """The input with the first change of each of its inputs, with the second, and so on."""
    changed = []
    for number in range(min(len(CHANGED_OFFSETS), max(map(len, inputs), default=0))):
        changed.append(prepared)
        for each in inputs:
            changed[-1] = each[number].changed(changed[-1]) if number < len(each) else changed[-1]
    return changed


def _patches(field: Field, prepared: ModelInput) -> list[Perturbation]:
    """The middle of patches beside and above each other, if it is known how the picture is cut."""
    grid = None if prepared.picture is None else prepared.picture.grid
    if grid is None or field.tensor.ndim != 4 or min(grid) < SMALL_AXIS:
        return []
    first = [count // 2 // 2 * 2 - 2 for count in grid]  # even: pooling joins the first two
    sizes = [size / count for size, count in zip(field.tensor.shape[2:], grid, strict=True)]
    row, column = (
        [int((place + step + 0.5) * size) for step in range(4)]
        for place, size in zip(first, sizes, strict=True)
    )
    return [Perturbation(field, row[down], column[right]) for down, right in ((0, 0), (0, 1), (1, 0), (0, 3))]


def _ordinary(field: Field, prepared: ModelInput) -> list[int]:
    """The places of ids that no tokenizer added, and that stand for no part of a picture or sound."""
    tokens, length = prepared.tokens, field.places
    if len(tokens) != length:
        return list(range(length))
    inside = min(PICTURE_ID, SOUND_ID)
    return [place for place, token in enumerate(tokens) if not token.special and token.id < inside]


MOST_CHANGES = 8  # most tokens of an input that are changed


class Setup(NamedTuple):
    """A round of passes: which modules it freezes, and the calls whose rows it changes instead of tokens."""

    frozen: frozenset[str] = frozenset()
    calls: frozenset[CallKey] = frozenset()


class Search:
    """The passes of one audit; ``sites`` are the calls of the first, which records what the others freeze.

    ``few`` changes are enough to tell whether anything mixes; else there are eight of each input.
    """

    def __init__(
        self, model: Any, prepared: ModelInput, few: Sequence[ModelInput] = (), first: FirstPass | None = None
    ) -> None:
        self.model, self.prepared, self.changes = model, prepared, few
        self.perturbations = [] if few else choose_perturbations(prepared)
        self.changed: Sequence[ModelInput] = few
        self.first = first or FirstPass()
        self.frozen: frozenset[str] = frozenset()
        self.mixers: dict[str, Setup] = {}  # by path: the round that found it
        self.feeding: set[str] = set()  # those from which mixed tokens reach a captured call
        self.mixed_shapes: dict[str, set[torch.Size]] = {}  # the shapes of what they mixed
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
        if not self.changes:
            self.changed = [each.changed(self.prepared) for alike in self.distinct() for each in alike]
        while self._holds_more(Setup(self.frozen)):
            pass
        unplaced = frozenset(self.first.calls.keys() - self.first.affected)
        if unplaced:
            self._try(Setup(self.frozen, unplaced))
        if unplaced and self._mixing() - self._sorting - self.frozen:
            for call in sorted(unplaced):
                while self._holds_more(Setup(self.frozen, frozenset({call}))):
                    pass
        return [path for path in self.paths if path in self.mixers and not self._is_inert(path)]

    def _is_inert(self, path: str) -> bool:
        """Whether a module only adds what others in it mixed in two ways."""
        inert = self.first.functions.get(path, set()) <= INERT
        return inert and any(is_inside(other, path) for other in self.mixers)

    def _holds_more(self, setup: Setup) -> bool:
        """Whether a round of passes shows what else the next one must freeze."""
        self._try(setup)
        mixing = self._mixing() - self._sorting
        new = mixing - self.frozen
        new = {path for path in new if not any(is_inside(other, path) for other in new)}  # innermost
        if undone := {path for path in new if self._is_undone(path)}:
            for path, names in self.find_functions(undone, setup).items():
                if all(mixing_of({name}, (*MIXING_PATTERNS, *STEP_PATTERNS)) == [A_CHOICE] for name in names):
                    self._sorting.add(path)
            new -= self._sorting
        self._follow(new, mixing)
        self.mixers = dict.fromkeys(new | (mixing & self.frozen), setup) | self.mixers
        self.frozen = self.frozen | {path for path in self.paths if pattern(path) in map(pattern, new)}
        return bool(new) or self.first.assign_owners()

    def _follow(self, new: Collection[str], mixing: Collection[str]) -> None:
        """Note what mixed tokens make, and from which modules they reach a captured call."""
        order, mixed = {place: at for at, place in enumerate(self.first.moves.before)}, self.first.moves.mixed
        last = max((order[each] for each in mixed if each.end == "given"), default=-1)
        for place in mixed:
            if place.end == "out" and place.module in mixing:
                self.mixed_shapes.setdefault(place.module, set()).update(mixed[place])
        self.feeding |= {path for path in new if order[CallEnd(path, 0, "in")] < last}

    def _is_undone(self, path: str) -> bool:
        """Whether a module sorts tokens and an enclosing one, not the whole model, returns them unmixed."""
        if not sorts(self.first.functions.get(path, set())):
            return False
        moves = self.first.moves
        blurred = {place.module for place in (*moves.mixed, *moves.unclear)}
        clear = {place.module for place in moves.reached if place.end == "out"} - blurred - {""}
        return any(is_inside(path, outer) for outer in clear)

    def find_functions(self, paths: Collection[str], setup: Setup) -> dict[str, set[str]]:
        """The torch functions by which these modules mix tokens in such a round, by module."""
        steps = FunctionSteps(paths)
        if paths:
            self.first.begin()
            self._run(self.prepared, Freeze(self.module, self.first, setup.frozen, steps=steps))
            steps.moves.keeps = False
            self._try(setup, steps)
        return steps.find_mixing()

    def distinct(self) -> list[list[Perturbation]]:
        """One perturbation per token, of each input: for a patch, its first pixel."""
        every = self.perturbations
        pieces = [each.field.pieces and not each.field.states for each in every]
        if not any(pieces):
            return _sample(every)
        self.changed = [each.changed(self.prepared) for each in every]
        footprints: dict[Perturbation, Tensor | None] = {}
        for each, cut, marks in zip(every, pieces, self._try(Setup()), strict=True):
            alike = (_same_token(marks, others) for other, others in footprints.items() if other.field.pieces)
            if not (cut and any(alike)):
                footprints[each] = marks
        return _sample([*footprints])

    def _try(self, setup: Setup, steps: FunctionSteps | None = None) -> list[Tensor | None]:
        """One pass per perturbation, or for some rows of the calls; returns the footprints of the tokens."""
        self.first.begin()
        passes = dict(enumerate(self.changed))
        if setup.calls:  # neighbours, and rows 2, 4, 8 ... further on, of the calls' results
            results = (tensor for call in setup.calls for tensor in find_tensors(self.first.calls[call][1]))
            longest = max((size for result in results for size in result.shape), default=0)
            rows = CHANGED_OFFSETS if self.changes else (0, *(2**power for power in range(MOST_CHANGES - 1)))
            passes = {row: self.prepared for row in rows if row < longest}
        footprints = []
        for number, prepared in passes.items():
            freeze = Freeze(self.module, self.first, setup.frozen, setup.calls, number, steps)
            self._run(prepared, freeze)
            footprints.append(freeze.footprint)
        return footprints

    def _run(self, prepared: ModelInput, freeze: Freeze) -> tuple[Site, ...]:
        model = self.model
        devices = {each.device for each in self.module.parameters() if each.is_cuda}
        without = torch.no_grad() if model.trains else torch.inference_mode()
        with torch.random.fork_rng(devices), without, model.threads(prepared):
            torch.manual_seed(0)  # all randomness is the same in each pass
            with recording(model.module, (), prepared.axes, warn=False) as record, freeze.watch(record):
                try:
                    prepared.call(model.module)
                except AttnscopeError:
                    raise
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    raise ModelError(f"{model.name} fails in an audit: {reason}") from error
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
    both = zip(places_changed(one), places_changed(other), strict=True)
    return any(len(left) > 1 and torch.equal(left, right) and int(left.sum()) == 1 for left, right in both)


def _sample(perturbations: Sequence[Perturbation]) -> list[list[Perturbation]]:
    """A limited number of perturbations of each input, near ones and far ones."""
    chosen = []
    for name in dict.fromkeys(each.field.name for each in perturbations):
        alike = [each for each in perturbations if each.field.name == name]
        chosen.append(
            [*dict.fromkeys(alike[len(alike) * part // MOST_CHANGES] for part in range(MOST_CHANGES))]
        )
    return chosen


MOST_TOKENS = 16  # most tokens of a text that is asked about
SENTENCE = "The quick brown fox jumps over the lazy dog and runs away."  # in place of a shorter text

PLAIN_TYPES = Tensor, nn.Parameter

MIXING_NOTE = "{names}: tokens also mix here, outside the attention shown"
UNTESTED_NOTE = "not tested whether tokens also mix outside the attention shown: {reason}"


@dataclass(frozen=True)
class Seal:
    """The modules that mix tokens before or between captured calls, or behind; or why that was not tested."""

    mixers: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    untested: str = ""

    def note(self, record: Record, module: nn.Module) -> None:
        """Add what every answer about the model says."""
        if self.untested:
            record.note_change(UNTESTED_NOTE.format(reason=self.untested))
            return
        module, mixers = original(module), (*self.mixers, *self.behind)
        record.without_attention = [
            layer
            for layer in record.without_attention
            if layer.reason == ACROSS
            or any(is_within(path, layer.name) or is_within(layer.name, path) for path in mixers)
        ]  # what else does not attend from token to token mixes none in any other way
        others = [path for path in self.mixers if not any(is_within(each, path) for each in record.matrices)]
        if others:
            _name_layers(record, module, others)
            record.note_change(MIXING_NOTE.format(names=name_mixers(others, module)))


def _name_layers(record: Record, module: nn.Module, mixers: Sequence[str]) -> None:
    """Name the layers that mix in place of attention, where others of their list attend."""
    shown = [each.site.name for each in record.sites]
    covered = shown + [each.name for each in record.without_attention]
    for path in mixers:
        entries = {path: why_opaque(module.get_submodule(path))}
        for number in NUMBER.finditer(path):
            if any(each.startswith(path[: number.start()]) for each in shown):
                entry = path[: number.end()]
                entries.setdefault(entry, describe(module.get_submodule(entry)))
        for entry, reason in entries.items():
            if reason is not None and not any(is_within(each, entry) for each in covered):
                record.name(entry, reason)
                covered.append(entry)


_seals: WeakKeyDictionary[nn.Module, dict[object, Seal]] = WeakKeyDictionary()


def seal_of_input(model: Any, prepared: ModelInput, calls: Sequence[SiteRecord]) -> Seal:
    """The seal of a model, as far as this kind of input runs it: tested once per module, and per its files.

    ``calls`` are those of a pass over the input.
    """
    module = original(model.module)
    lengths = {size for call in calls for size in (call.queries, call.keys) if size > 1}
    several = [str(each.name) for each in token_fields(prepared, lengths) if each.places > 1]
    seals, form = _seals.setdefault(module, {}), (prepared.entry, *sorted(prepared.inputs), *several)
    modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if form not in seals and {type(mode).__name__ for mode in modes} <= {
        "DeviceContext"
    }:  # nothing is edited
        files = None if model.trains else identify_model(model.name, model.revision)
        key = None
        if files is not None:
            key = hash_key({"files": files, "programs": identify_programs(), "form": [type(module), form]})
        stored = None if key is None else find_seal(key)
        seals[form] = seal = measure_seal(model, prepared, lengths) if stored is None else Seal(*stored)
        if key is not None and stored is None and not seal.untested:
            store_seal(key, seal.mixers, seal.behind)
    return seals.get(form, Seal())


def measure_seal(model: Any, prepared: ModelInput, lengths: Collection[int]) -> Seal:
    """Test now: a failure, and what takes longer than a look may, are reasons that nothing was tested."""
    if any(each.is_meta or hasattr(each, "placements") for each in model.module.parameters()):
        return Seal(untested="parts of the model are on other devices")
    reason = ""
    # the input itself may have the only length that the model reads
    for each in (shorten(model, prepared, lengths), prepared):
        try:
            with buffers_put_back(model.module), foreign_output():
                return Context().run(_seek_mixers, model, each, lengths)
        except Exception as error:  # foreign code may raise anything
            reason = reason or (str(error) if isinstance(error, AttnscopeError) else first_line(error))
        if reason == TOO_LONG:
            break
    return Seal(untested=reason)


def _seek_mixers(model: Any, prepared: ModelInput, lengths: Collection[int]) -> Seal:
    """The passes, in a context of their own: they report no progress, and belong to no corpus."""
    start, lengths = thread_time(), {*lengths, MOST_TOKENS}
    first = FirstPass(Moves(most=SEAL_BYTES), deadline=start + SEAL_SECONDS)
    search = Search(model, prepared, choose_few(prepared, lengths), first)
    if (thread_time() - start) * (1 + len(CHANGED_OFFSETS)) > SEAL_SECONDS:
        raise ModelError(TOO_LONG)
    search.changes = search.changes or change_together(prepared, search.distinct())
    search.changed = search.changes
    if len(search.changes) < 2:
        raise ModelError("its token positions are unknown")
    return seal_of_search(search)


def seal_of_search(search: Search) -> Seal:
    """What a search finds before attention or between layers, and behind them."""
    paths, sites = search.find(), [site.name for site in search.sites]
    lists = module_lists(sites) - {""}
    feeding = {*map(pattern, search.feeding)}

    def passes_on(path: str) -> set[torch.Size]:
        return {tensor.shape for tensor in search.first.moves.before.get(CallEnd(path, 0, "out"), ())}

    def around(path: str) -> Iterator[str]:
        while path and not any(is_within(name, path) for name in sites):
            yield path
            path = path.rpartition(".")[0]

    states = {shape for path in sites for shape in passes_on(path)}
    before = [
        path
        for path in paths
        if pattern(path) in feeding
        or path.startswith(tuple(lists))
        or search.mixed_shapes.get(path, set()) & states
        or any(passes_on(outer) & states for outer in around(path))
    ]  # the others are behind all layers, and make something else of what these passed on
    bare = [path for path in before if not any(is_within(name, path) for name in sites)]
    mixers = tuple(path for path in before if not any(is_inside(path, outer) for outer in bare))
    return Seal(mixers, tuple(path for path in paths if path not in before))


@dataclass(eq=False)
class FirstCall:
    """Listens for the first call of a module, and copies its arguments, so that the module can be tested."""

    name: str
    module: nn.Module
    given: ModelInput | None = None
    refusal: str = "the model itself was not called"
    seen: bool = False
    revision: str | None = None
    trains = True  # what a pass stores on the module must still allow gradients
    threads = nullcontext

    def __post_init__(self) -> None:
        self.module = original(self.module)

    def run(self, module: nn.Module, call: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module."""
        if not self.seen and original(module) is self.module:
            self.seen = True
            try:
                self.given, self.refusal = self._keep(args, kwargs)
            except Exception as error:  # which is no reason for the module to fail
                self.refusal = first_line(error)
        return call(*args, **kwargs)

    def _keep(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ModelInput | None, str]:
        """Copies of the arguments, or why there are none: tensors are reused."""
        parameters = inspect.signature(self.module.forward).parameters.values()
        names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        arguments = (dict(zip(names, args, strict=False)) if len(args) <= len(names) else {}) | kwargs
        tensors = {name: value for name, value in arguments.items() if type(value) in PLAIN_TYPES}
        settings = {name: value for name, value in arguments.items() if name not in tensors}
        if is_training(self.module):
            return None, "the model was in training mode"
        if any(settings.get(name) is not None for name in CACHES):
            return None, "its first call continued from a cache"
        plain = [isinstance(value, (bool, int, float, str, type(None))) for value in settings.values()]
        plain += [not (each.is_sparse or each.is_nested) for each in tensors.values()]
        if not tensors or not all(plain) or len(args) > len(names):
            return None, "its first call had arguments other than plain tensors"
        copies = {name: each.detach().clone() for name, each in tensors.items()}
        return ModelInput(copies, {}, (), settings=settings), ""

    def note(self, record: Record) -> None:
        """Test the module, and note what is found, with a warning; that it was not tested is a note alone."""
        seal, before = Seal(untested=self.refusal), record.notes
        if self.given is not None:
            seal = seal_of_input(self, self.given, record.sites)
        seal.note(record, self.module)
        for note in [each for each in record.notes if each not in before and not seal.untested]:
            warnings.warn(note, stacklevel=4)


def shorten(model: Any, prepared: ModelInput, lengths: Collection[int]) -> ModelInput:
    """A short text, one row of a batch; pictures and sounds stay as they are."""
    fields = token_fields(prepared, lengths)
    if any(each.pieces and not each.states for each in fields):
        return prepared
    if prepared.tokens:
        second = SENTENCE if getattr(model, "encoder_decoder", False) else None
        with suppress(Exception):  # some tokenizers read a language of their own
            short: ModelInput = model.prepare(SENTENCE, second, Limit(MOST_TOKENS, True))
            return short
    tokens = {each.places for each in fields}
    texts = {each.lined.shape[0] for each in fields if each.tensor.ndim > 1} - tokens - {*lengths}
    most = dict.fromkeys(texts, 1) | {size: MOST_TOKENS for size in tokens if size > MOST_TOKENS}

    def cut(name: str | int, tensor: Tensor) -> Tensor:
        states = [each for each in fields if each.name == name and each.states]
        for axis in range(tensor.ndim - len(states)):
            if tensor.shape[axis] in most:
                tensor = tensor.narrow(axis, 0, most[tensor.shape[axis]])
        return tensor

    cuts = {name: cut(name, each) for name, each in prepared.tensors.items()}
    return replace(prepared.with_tensors(cuts), tokens=prepared.tokens[:MOST_TOKENS])
