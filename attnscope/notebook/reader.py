"""Where runs come from: a model that reads a text, a file, or a recording."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope import models
from attnscope.errors import InputError
from attnscope.models.inputs import place_images
from attnscope.models.request import InputRequest
from attnscope.models.served import open_file
from attnscope.models.trace_model import TracedModel
from attnscope.notebook.run import Run

if TYPE_CHECKING:
    from torch import Tensor, nn


class Reader:
    """A model that reads each text in a pass kept as a ``Run``; ``predicting`` loads its output head, too."""

    def __init__(self, model: models.Model, predicting: Callable[[], models.Model] | None = None) -> None:
        self._model, self._predicting = model, predicting

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def module(self) -> nn.Module:
        """The model itself."""
        return self._model.module

    def __repr__(self) -> str:
        return f"<{self.name}: read(text) shows what its attention does>"

    @contextmanager
    def predicting(self) -> Iterator[models.Model]:
        """The model with its output head, in eval mode while the block runs."""
        from attnscope.capture.placing.split_heads import require_whole_heads

        if self._predicting is not None:
            self._model, self._predicting = self._predicting(), None
        require_whole_heads(self._model.module, "changing heads needs the whole model in one process")
        with eval_mode(self._model.module):
            yield self._model

    def read(
        self,
        text: str | Mapping[str, Tensor] | None = None,
        second: str | None = None,
        *,
        image: str | Path | Sequence[str | Path] | None = None,
        video: str | Path | None = None,
        audio: str | Path | None = None,
        part: tuple[float, float | None] = (0.0, None),
        labels: str | Path | None = None,
        repeat_random: int | None = None,
        chat: bool = False,
        system: str | None = None,
        generate: int | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        max_tokens: int | None = None,
        truncate: bool = False,
    ) -> Run:
        """One pass over a text, a pair, images, a video, a sound, or tensors by argument name.

        ``labels`` is a file that names the positions of tensors. ``part`` is the part of a sound to read,
        in seconds. ``repeat_random`` random tokens are read twice instead of a text. ``generate`` appends
        up to that many generated tokens.
        """
        given = locals()  # every argument as it was given
        from attnscope.models.trace_recording import record_trace

        known = {each.name: given[each.name] for each in fields(InputRequest) if each.name in given}
        model, files = self._model, image if video is None else video
        tensors = text if isinstance(text, Mapping) else None
        beside = image is not None or video is not None or audio is not None
        for each in (second, None if beside or tensors is not None else text):
            if each is not None and not str(each).strip():
                raise InputError("the text is empty: give at least one word")
        known |= {
            "text": None if text is None or tensors is not None else str(text),
            "pictures": [Path(each) for each in ([files] if isinstance(files, (str, Path)) else files or [])],
            "video": video is not None,
            "audio": None if audio is None else Path(audio),
            "from_second": part[0],
            "to_second": part[1],
            "inputs": tensors,
            "labels": None if labels is None else Path(labels),
        }
        request = InputRequest(**known)
        with eval_mode(model.module):
            prepared = request.prepare(model)
            with model.threads(prepared):
                return Run(TracedModel(record_trace(model, prepared)), source=(self.predicting, request))


def load(
    name: str | os.PathLike[str] = "own",
    *,
    device: str = "auto",
    device_map: str | None = None,
    dtype: str = "auto",
    revision: str | None = None,
    tokenizer: str = "own",
    generative: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    mixers: bool = False,
    channel: int | None = None,
) -> Reader:
    """A model by name: own, own-causal, a folder, the id of a Hugging Face model, or FILE.py:NAME.

    ``generative`` loads the language-model head of a Hugging Face model, for ``read(..., generate=20)``;
    ``device_map="auto"`` runs one that is larger than memory, layer by layer from the disk. Code in a
    model's folder runs only with ``trust_remote_code``. ``mixers`` shows linear and state-space layers too,
    as signed matrices, of which ``channel`` names one where each has its own. Raises ``ModelError``.
    """
    given = locals()  # every argument as it was given
    shown = given.pop("mixers"), given.pop("channel")

    def again(**more: Any) -> models.Model:
        model = models.load(**given, **more)
        model.mixers, model.channel = shown
        return model

    return Reader(again(), partial(again, predicting=True))


def wrap(
    module: nn.Module, tokenizer: Any = None, *, processor: Any = None, name: str | None = None
) -> Reader:
    """A model object of yours: of transformers, with its tokenizer or image processor, or any module.

    A bare module reads tensors by argument name; with a ``tokenizers.Tokenizer`` it reads texts.
    """
    from attnscope.models.text.reader import wrap_module

    with eval_mode(module):
        return Reader(wrap_module(module, tokenizer, processor, name))


def open(path: str | Path) -> Run:
    """A run from a file: a ``.trace``, or weights saved by any tool. Raises ``InputError``."""
    return Run(open_file(path))


@contextmanager
def record(
    module: nn.Module,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    *,
    images: Mapping[str, Any] | None = None,
    name: str | None = None,
    seal: bool = True,
) -> Iterator[Run]:
    """Record whatever a module runs inside the block, including training; the run is ready when it ends.

    ``tokens`` label the axes that have their length, those of ``encoder`` and ``decoder`` apart if you
    like. ``images`` are camera images: tokens with an image's name are its patches, row by row. An image
    is an array, a tensor or a PIL image, [row, column, 3] or [3, row, column]; or a list, one for each
    pass. The steps of a generation are one pass, as long as each step has the keys of the one before: beams
    that change places, rejected drafts and keys that overwrite others are followed. The last of several
    passes is shown; ``run.passes`` has them all.

    At the block's end a module in eval mode whose first call had plain tensors is asked, once, by a few more
    passes over at most 16 tokens of them, whether tokens also mix outside of the attention that is shown:
    ``run.notes`` say so, or why it was not asked. ``seal=False`` leaves this out.

    >>> with attnscope.record(policy, {"encoder": seen, "decoder": steps}, images={"front": frame}) as run:
    ...     policy(observation)
    """
    from torch import nn

    from attnscope.capture import recording
    from attnscope.capture.hooks.modules import CALLED
    from attnscope.models.seal import FirstCall
    from attnscope.models.trace_recording import RecordedPasses, axes_of_texts

    run, held, axes, images = Run(), RecordedPasses(), axes_of_texts(tokens), images or {}
    single = {name: image for name, image in images.items() if not isinstance(image, list)}
    place_images(axes, single)  # refuse what does not fit before anything runs
    name = name or type(module).__name__
    first = FirstCall(name, module)
    with CALLED.listening(nn.Module, first), recording(module, [held], axes) as record:
        yield run
    if seal:
        first.note(record)
    *run.earlier, last = held.traces(module, name, record, axes, images)
    run.kept = last()


_lock = threading.Lock()
_evaluating: dict[int, tuple[int, bool]] = {}  # by id: how many blocks use a module, and whether it trained


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """A module in eval mode until the last such block ends, in any thread; then its training mode returns."""
    parts = list(module.modules())
    with _lock:
        for part in parts:
            blocks, trained = _evaluating.get(id(part), (0, part.training))
            _evaluating[id(part)] = blocks + 1, trained
    try:
        module.eval()
        yield
    finally:
        with _lock:
            for part in parts:
                blocks, trained = _evaluating.pop(id(part))
                if blocks > 1:
                    _evaluating[id(part)] = blocks - 1, trained
                else:
                    part.training = trained
