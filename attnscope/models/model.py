"""What all kinds of models share: how they read, run and predict."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from attnscope.errors import AttnscopeError, InputError, ModelError, out_of_memory
from attnscope.lazy import torch
from attnscope.limits import foreign_output
from attnscope.models.inputs import (
    NO_LIMIT,
    Chat,
    Limit,
    ModelInput,
    Objective,
    Paths,
    SoundPart,
    note_unplaced,
    text_axes,
)
from attnscope.models.text.tokens import GREEDY, Sampling, repeat_random, tokens_of_spellings
from attnscope.progress import report
from attnscope.scores import Weighting
from attnscope.text import MOST_CHARACTERS, visible

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnscope.attention import Attention, Token
    from attnscope.capture import Observer, Record
    from attnscope.fused.fused_pass import FusedPass
    from attnscope.models.text.tokens import TextTokens, Vocabulary


def find_device(module: nn.Module) -> torch.device:
    """The device of the first weights; with a device map, of the first ones not on disk."""
    places = (weights.device for weights in module.parameters())
    return next((place for place in places if place.type != "meta"), torch.device("cpu"))


def accepts(module: nn.Module, argument: str, entry: str = "__call__") -> bool:
    """Whether the module, or a method of it, takes an argument of that name."""
    method = module.forward if entry == "__call__" else getattr(module, entry)
    function = getattr(method, "__func__", None)  # caching a module's own function would keep it alive
    signature = inspect.signature(method) if function is None else _signature(function)
    return argument in signature.parameters


_signature = lru_cache(maxsize=64)(inspect.signature)


SOUNDS = ("input_features", "input_values")  # names of the sound input in transformers modules


def find_sound_input(module: nn.Module) -> str | None:
    """The name of the sound input of a transformers module, or of its encoder; ``None`` if it has none."""
    mains = (getattr(part, "main_input_name", None) for part in (module, getattr(module, "encoder", None)))
    names = [name for name in SOUNDS if accepts(module, name)]
    return next((str(name) for name in (*mains, *names) if name in names), None)


def reads_sound(module: nn.Module) -> bool:
    """Whether a transformers module reads sound, and nothing else on its own."""
    return find_sound_input(module) is not None and not accepts(module, "input_ids")


Fit: TypeAlias = Callable[[int], tuple[int | None, tuple[str, ...]]]
"""From a token count: how many to keep (``None`` for all), and a note."""


_kinds_learned: WeakSet[nn.Module] = WeakSet()  # modules whose kinds a text of one token has already shown
SMALL_PASS = 4e9  # below this many floating-point operations per pass, threads cost more than they save


class Model:
    """A loaded model: its module, how it reads text, and notes about it.

    ``name`` is what the user called it, ``notes`` are sentences that belong under every picture of it
    ("untrained: ..."), ``positions`` is the most tokens that it can read (``None``: no known limit).
    """

    forkable = False  # nothing but attnscope sees its passes, so that forked processes may run some of them
    weighting: Weighting = "raw"  # the weighting of its attention
    weighted_pass: Any = None  # runs it so that observers see weighted attention; as text, its title
    mixers = False  # whether its passes show linear and state-space layers as well
    channel: int | None = None  # of these, where each channel has its own matrix; else their mean
    revision: str | None = None  # its commit on the hub, if it is from there
    trains = False  # then what a pass stores on the module, a table of rotations, must allow gradients

    def __init__(
        self, name: str, module: nn.Module, positions: int | None, notes: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.module = module.eval()
        self.positions = positions
        self.notes = tuple(notes)

    @property
    def title(self) -> str:
        """The name shortened for a title: the last two parts of a folder's path."""
        parts = Path(self.name).parts
        name = visible(self.name if len(parts) < 3 else "…/" + "/".join(parts[-2:]))  # others chose it
        return f"{name} · {self.weighting_title}" if self.weighting_title else name

    @property
    def weighting_title(self) -> str:
        """The weighting in words for a title, and what was found; empty for none."""
        return "" if self.weighted_pass is None else str(self.weighted_pass)

    @property
    def device(self) -> torch.device:
        """The device of the first weights."""
        return find_device(self.module)

    def prepare(self, text: str, second: str | None = None, limit: Limit = NO_LIMIT) -> ModelInput:
        """The inputs and labelled axes of one text, or of a pair of texts. Raises ``InputError``."""
        raise InputError(f"{self.name} has no tokenizer: wrap it with one, or read tensors by name")

    def fit(self, texts: Sequence[str], limit: Limit) -> Fit:
        """How many tokens of a text or a pair to keep, and a note if that cuts it.

        If only the beginning of a very long text is read, its tokens are counted. The returned function
        raises ``InputError`` for a text that is too long and may not be cut.
        """
        characters, (max_tokens, truncate) = max(map(len, texts)), limit

        def fit(count: int) -> tuple[int | None, tuple[str, ...]]:
            needed = count if max_tokens is None else min(count, max_tokens)
            more = "more than " if characters > MOST_CHARACTERS else ""
            if self.positions is not None and needed > self.positions and not truncate:
                raise InputError(
                    f"the text has {more}{count:,} tokens and {self.name} reads at most {self.positions:,}: "
                    "shorten it, or pass --truncate to cut it"
                )
            if more and max_tokens is None and not truncate:
                raise InputError(
                    f"the text has {characters:,} characters, and at most {MOST_CHARACTERS:,} of one text "
                    "are read: shorten it, or pass --max-tokens to cut it"
                )
            limits = [most for most in (max_tokens, self.positions) if most is not None]
            if limits and count > min(limits):
                return min(limits), (f"cut: the first {min(limits):,} of {more}{count:,} tokens are shown",)
            note = f"cut: the first {MOST_CHARACTERS:,} of {characters:,} characters are read"
            return None, ((note,) if more else ())

        return fit

    def repeat_random(self, count: int, seed: int = 0) -> ModelInput:
        """``count`` random tokens twice, instead of a text. Raises ``InputError``."""
        raise InputError(f"{self.name} reads no text of random tokens: leave out --repeat-random")

    def _repeat(
        self, frame: TextTokens, vocabulary: Vocabulary, size: int, count: int, seed: int
    ) -> TextTokens:
        """``count`` random tokens twice in place of a text. Raises ``InputError`` if they are too many."""
        encoded = repeat_random(frame, vocabulary, size, count, seed)
        tokens = len(encoded.tokens)
        if self.positions is not None and tokens > self.positions:
            most = count - -(-(tokens - self.positions) // 2)
            raise InputError(
                f"{count:,} random tokens twice are {tokens:,} tokens, and {self.name} reads at most "
                f"{self.positions:,}: pass --repeat-random {most}"
            )
        return encoded

    def prepare_all(
        self, texts: Sequence[tuple[str, ...]], limit: Limit = NO_LIMIT, *, chat: bool = False
    ) -> list[ModelInput | InputError]:
        """``prepare`` (or ``prepare_chat``) for many texts or pairs; a refused one gives its exception."""
        read: Callable[..., ModelInput] = self.prepare_chat if chat else self.prepare

        def attempt(text: tuple[str, ...]) -> ModelInput | InputError:
            try:
                return read(*text, limit=limit)
            except InputError as error:
                return error

        collects = gc.isenabled()
        gc.disable()  # tokens are many and make no garbage: looking for it takes a third of the time
        try:
            return [attempt(text) for text in texts]
        finally:
            if collects:
                gc.enable()

    def prepare_chat(self, text: str, chat: Chat | None = None, limit: Limit = NO_LIMIT) -> ModelInput:
        """A text as one message, or a JSON list of messages, in the model's chat format."""
        raise InputError(f"{self.name} has no chat format: leave out --chat to give it the text as it is")

    def prepare_image(
        self, path: Paths, text: str | None = None, chat: Chat | None = None, *, video: bool = False
    ) -> ModelInput:
        """An image, images with a text, or the frames of a ``video``. Raises ``InputError``."""
        left = "--video" if video else "--image"
        raise InputError(f"{self.name} reads text, not images: leave out {left}, or choose a vision model")

    def prepare_audio(self, path: Path, text: str | None = None, part: SoundPart | None = None) -> ModelInput:
        """A sound file, alone or with its transcript, as the model reads it. Raises ``InputError``."""
        raise InputError(f"{self.name} does not take sound: leave out --audio, or choose a speech model")

    def prepare_tensors(self, tensors: Mapping[str, Tensor]) -> ModelInput:
        """The user's own tensors, by argument name, or numbered ``0``, ``1``, ...

        The ids of a single text become tokens by number, so that repeats are known without a tokenizer.
        """
        on_device = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        ids = on_device.get("input_ids", next(iter(on_device.values())) if len(on_device) == 1 else None)
        tokens: tuple[Token, ...] = ()
        if ids is not None and "decoder_input_ids" not in on_device and ids.ndim == 2 and len(ids) == 1:
            numbers: list[int] = [] if ids.is_floating_point() or ids.is_complex() else ids[0].tolist()
            tokens = tokens_of_spellings(numbers, [None] * len(numbers), ())
        axes = text_axes(tokens) if tokens else {}
        texts = max((len(tensor) for tensor in on_device.values() if tensor.ndim > 1), default=1)
        if all(name.isdigit() for name in on_device):
            arguments = tuple(on_device[name] for name in sorted(on_device, key=int))
            return ModelInput({}, axes, tokens, arguments=arguments, batch_texts=texts)
        parameters = inspect.signature(self.module.forward).parameters
        unknown = [name for name in on_device if name not in parameters]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise InputError(
                f"{self.name} has no input {unknown[0]!r}: its forward takes {', '.join(parameters)}; "
                "name the tensors so, or number them 0, 1, ..."
            )
        return ModelInput(on_device, axes, tokens, batch_texts=texts)

    def prepare_any(self) -> ModelInput:
        """Any valid input, for finding out which weights belong to what."""
        return self.prepare("The quick brown fox jumps over the lazy dog.", limit=Limit(truncate=True))

    def generate(self, prepared: ModelInput, count: int, sampling: Sampling = GREEDY) -> ModelInput:
        """The text with up to ``count`` tokens that the model generates, fewer if it ends the text itself."""
        raise ModelError(
            f"{self.name} does not generate text: it has no output that is scores of a next token"
        )

    @property
    def objective(self) -> Objective:
        """How the model predicts a token. Raises ``ModelError`` without an output head."""
        raise ModelError(f"{self.name} predicts no tokens: it has no output head over a vocabulary")

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """One pass: scores ``at`` tokens of ``copies``.  [target], [target] -> [target, vocabulary]"""
        raise ModelError(f"{self.name} predicts no tokens: it has no output head over a vocabulary")

    def logit_parts(self, prepared: ModelInput, copies: Tensor, at: Tensor, size: int) -> Iterator[Tensor]:
        """The same, of so many targets at a time."""
        yield from torch.split(self.logits(prepared, copies, at), size)

    def find_trunk(self, prepared: ModelInput) -> None:
        """Find, before anything is watched or changed, what ``logit_parts`` runs once for all parts."""

    def run(
        self, prepared: ModelInput, observers: Sequence[Observer], fused: FusedPass | None = None
    ) -> Record:
        """One forward pass, or one recorded generation, seen by ``observers``. Raises ``ModelError``."""
        if self.weighted_pass is not None:
            weighted: Record = self.weighted_pass.run(prepared, observers)
            return weighted
        if prepared.replay is not None:
            return self.note_seal(prepared, prepared.replay.shown_to(observers))
        from attnscope.capture import recording
        from attnscope.capture.record import FunctionObserver

        self.learn_kinds(prepared)
        watching = (*observers, FunctionObserver(partial(report_layer, self.module)))
        with (
            self.without_gradients(),
            self.threads(prepared),
            self._quoting(prepared),
            recording(
                self.module,
                watching,
                prepared.labels,
                fused,
                warn=False,
                mixers=self.mixers,
                channel=self.channel,
            ) as record,  # fmt: skip
        ):
            prepared.call(self.module)
        if prepared.request is not None and prepared.request.labels is not None:
            for sentence in note_unplaced(prepared.axes, record.lengths):
                record.note_change(sentence)
        if self.mixers:
            require_mixers(self.name, record, self.channel)
        return self.note_seal(prepared, require_attention(self.name, self.module, record))

    def note_seal(self, prepared: ModelInput, record: Record) -> Record:
        """The record of a pass, with a note if the model also mixes tokens outside of its attention."""
        if not self.trains:
            from attnscope.models.seal import seal_of_input

            seal_of_input(self, prepared, record.sites).note(record, self.module)
        return record

    def learn_kinds(self, prepared: ModelInput) -> None:
        """Run a text of one token written twice, so that the recording learns the kind of each attention.

        One token cannot show that. Only the first such text of a module is run so, and the run leaves
        random number generators as they were. If the model fails on two tokens, a warning says so, and
        the kinds are those that the modules declare.
        """
        from attnscope.capture import recording

        if len(prepared.tokens) > 1 or self.module in _kinds_learned:
            return

        def twice(tensor: Tensor) -> Tensor:  # the ids or the mask of one-token texts, [batch, 1]
            one_token = tensor.ndim == 2 and tensor.shape[1] == 1 and not tensor.is_floating_point()
            return tensor.repeat(1, 2) if one_token else tensor

        doubled = {name: twice(tensor) for name, tensor in prepared.tensors.items()}
        if all(doubled[name] is tensor for name, tensor in prepared.tensors.items()):
            return
        devices = {tensor.device for tensor in doubled.values() if tensor.is_cuda}
        try:
            with (
                self.without_gradients(),
                torch.random.fork_rng(list(devices)),
                recording(self.module, warn=False),
            ):
                prepared.with_tensors(doubled).call(self.module)
        except Exception as error:
            if isinstance(error, AttnscopeError) or out_of_memory(error):
                raise
            unknown = "the kind of attention cannot be told from a text of one token"
            warnings.warn(f"{unknown}: {type(error).__name__}: {error}", stacklevel=3)
        _kinds_learned.add(self.module)

    def without_gradients(self) -> AbstractContextManager[None]:
        """No gradients in a pass; what it stores on a module that trains must still allow them."""
        return torch.no_grad() if self.trains else torch.inference_mode()

    def observe(self, prepared: ModelInput, observers: Sequence[Observer]) -> Record:
        """``run`` for observers that read tensor or array rows alike: a short trace gives arrays."""
        if prepared.array_replay is not None:
            return prepared.array_replay.shown_to(observers)
        return self.run(prepared, observers)

    @contextmanager
    def _quoting(self, prepared: ModelInput) -> Iterator[None]:
        """Turn a model's exceptions into ``ModelError``, and send its output to standard error."""
        try:
            with foreign_output():
                yield
        except AttnscopeError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            shapes = ", ".join(str(list(x.shape)) for x in (*prepared.arguments, *prepared.inputs.values()))
            reason = f"fails on inputs of shape {shapes}: {type(error).__name__}: {error}"
            raise ModelError(f"{self.name} {reason}") from error

    @contextmanager
    def threads(self, prepared: ModelInput) -> Iterator[None]:
        """One thread for a short text on the CPU, where several would only wait for each other."""
        before = torch.get_num_threads()
        weights = 0 if before == 1 else sum(each.numel() for each in self.module.parameters())
        if before == 1 or 2.0 * weights * len(prepared.tokens) > SMALL_PASS or self.device.type != "cpu":
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _require_positions(self, tokens: int, count: int) -> None:
        """Raise ``InputError`` if ``count`` tokens after ``tokens`` exceed the positions."""
        if self.positions is not None and tokens + count > self.positions:
            raise InputError(
                f"the text has {tokens:,} tokens and {self.name} reads at most {self.positions:,}: there is "
                f"room for {max(0, self.positions - tokens):,} more, not for {count:,}"
            )


def report_layer(module: nn.Module, attention: Attention) -> None:
    """Report a call's place in the outermost list of layers; nothing for a model without one."""
    parts = attention.site.name.split(".")
    place = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    if place is not None:
        layers = len(list(module.get_submodule(".".join(parts[:place])).children()))
        if layers > 1:
            report("layer", int(parts[place]) + 1, layers)


def require_mixers(name: str, record: Record, channel: int | None = None) -> None:
    """Raise ``ModelError`` if no linear or state-space layer was shown, or none that has this channel."""
    if not any(site.source == "probe" for site in record.sites):
        why = "; ".join(record.notes) if record.without_attention or record.failures else ""
        reason = f"no linear or state-space layer that can be shown{why and f' ({why})'}"
        raise ModelError(f"{name} has {reason}: leave out --mixers")
    if channel is not None and not any(f"channel {channel:,} of" in site.kernel for site in record.sites):
        raise ModelError(f"no layer of {name} has a matrix for each channel: leave out --channel")


def require_attention(name: str, module: nn.Module, record: Record) -> Record:
    """The record, if it contains attention. Raises ``ModelError``."""
    from attnscope.capture.placing.without_attention import why_empty

    if not record.sites:
        raise ModelError(f"{name} has no attention to show: {why_empty(module, record)}")
    return record
