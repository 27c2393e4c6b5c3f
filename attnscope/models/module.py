"""Any PyTorch module in a Python file or an importable module: ``model.py:Name`` or ``package.module:Name``.

Loading runs the file, with all of the user's rights.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnscope.attention import Token
from attnscope.capture.hooks.functions import original
from attnscope.capture.placing.without_attention import find_unseen
from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.models.inputs import ModelInput, Objective, text_axes
from attnscope.models.model import Model
from attnscope.models.text.reader import ReaderModel
from attnscope.models.text.tokens import NUMBERS

if TYPE_CHECKING:
    from attnscope.capture import Observer, Record
    from attnscope.fused.fused_pass import FusedPass


PROBED = (8, 3, 2)  # length of the text that tests whether a module is causal; shorter for a short context
FAILING = (IndexError, RuntimeError, ValueError)  # what a module raises for more tokens than it has positions
NUMBERED = "tokens are shown by their numbers: no tokenizer has read them"


class ModuleModel(ReaderModel):
    """A user's own module, which reads token ids ``[1, token]`` of some tokenizer, or plain tensors."""

    def run(
        self, prepared: ModelInput, observers: Sequence[Observer], fused: FusedPass | None = None
    ) -> Record:
        """One forward pass; a note says if something attention-like was not captured."""
        record = super().run(prepared, observers, fused)
        module = original(self.module)
        unseen = find_unseen(module, {site.site.name for site in record.sites})
        if unseen and prepared.replay is None:
            first = module.get_submodule(unseen[0])
            more = f" and {len(unseen) - 1:,} more look" if len(unseen) > 1 else " looks"
            record.note_change(
                f"{unseen[0]} ({type(first).__name__}){more} like attention that was not captured: "
                f"attnscope info {self.name} --audit tells what mixes tokens"
            )
        return record

    def prepare_any(self) -> ModelInput:
        """Two ids that are in every vocabulary and fit every context."""
        return self.label(tuple(Token(f"id {number}", number) for number in range(2)), ())

    numbered = False  # whether its tokens are ids without a tokenizer

    def prepare_tensors(self, tensors: Mapping[str, Tensor]) -> ModelInput:
        """The user's own tensors; ids of a single text are the module's only argument, labelled."""
        prepared = super().prepare_tensors(tensors)
        if len(tensors) != 1 or not prepared.tokens:
            return prepared
        self.numbered = True
        ids = (*prepared.inputs.values(), *prepared.arguments)
        return replace(prepared, inputs={}, arguments=ids, notes=(*prepared.notes, NUMBERED))

    def label(self, tokens: tuple[Token, ...], notes: tuple[str, ...]) -> ModelInput:
        """The ids of tokens as the module's only argument."""
        argument = torch.tensor([[token.id for token in tokens]], device=self.device)  # [1, token]
        return ModelInput({}, text_axes(tokens), tokens, notes, arguments=(argument,))

    def next_scores(self, ids: Tensor) -> Tensor:
        """The logits of the token after a text: the last row.  [1, token] -> [vocabulary]"""
        scores = self._scores(ids, "does not generate text")
        return scores.reshape(-1, scores.shape[-1])[-1]

    @cached_property
    def objective(self) -> Objective:
        """Next tokens if scores do not depend on later ones, otherwise masked. Raises ``ModelError``."""
        for count in PROBED:
            ids = torch.arange(count, device=self.device)[None] % 2  # valid in every vocabulary
            other = ids.clone()
            other[0, -1] = 1 - other[0, -1]
            try:
                with torch.no_grad(), self._quoting(ModelInput({}, {}, (), arguments=(ids,))):
                    scores, moved = self._scores(ids), self._scores(other)
                break
            except ModelError as error:
                if count == PROBED[-1] or not isinstance(error.__cause__, FAILING):
                    raise
        if scores.shape[:2] != (1, count):
            raise ModelError(f"{self.name} does not score every token: it returns {list(scores.shape)}")
        causal = torch.allclose(scores[0, :-1].float(), moved[0, :-1].float(), rtol=0, atol=1e-4)
        mask = None if causal else self.reader.mask
        if not causal and mask is None:
            raise ModelError(f"{self.name} reads in both directions, and its tokenizer has no mask token")
        return Objective(0, mask, NUMBERS if self.numbered else self.reader.vocabulary)

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """One pass: scores over the vocabulary.  [target], [target] -> [target, vocabulary]"""
        return self._scores(prepared.arguments[0])[copies, at]

    def _scores(self, ids: Tensor, but: str = "predicts no tokens") -> Tensor:
        """Scores over the vocabulary. Raises ``ModelError``.  [batch, token] -> [..., vocabulary]"""
        output = self.module(ids)
        scores = getattr(output, "logits", output)
        scores = scores[0] if isinstance(scores, (tuple, list)) and scores else scores
        size = 1 if self.numbered else self.reader.tokenizer.get_vocab_size()
        if not isinstance(scores, Tensor) or scores.ndim < 2 or scores.shape[-1] < size:
            shape = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ModelError(
                f"{self.name} {but}: it returns {shape}, not scores over the {size:,} tokens of its tokenizer"
            )
        return scores if self.numbered else scores[..., :size]


def load_module(name: str, *, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
    """The module of that name, or that what has it makes without arguments. Raises ``ModelError``."""
    where, _, attribute = name.rpartition(":")
    source = _import(where)
    try:
        module = attrgetter(attribute)(source)
    except AttributeError:
        public = [known for known in vars(source) if not known.startswith("_")]
        raise ModelError(f"no {attribute!r} in {where}: it has {', '.join(public) or 'nothing'}") from None
    if not isinstance(module, nn.Module) and callable(module):
        try:
            module = module()
        except Exception as error:
            raise ModelError(
                f"{name} cannot be called without arguments ({type(error).__name__}: {error}): write a "
                "function that makes the module, and name that"
            ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name} is {type(module).__name__}, not a torch.nn.Module or what makes one")
    return module.to(device=device, dtype=dtype)


def _import(where: str) -> ModuleType:
    path = Path(where)
    try:
        if path.suffix != ".py":
            return importlib.import_module(where)
        if not path.is_file():
            raise ModelError(f"no such file: {where}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        source = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, source)  # so that its classes can be found by name
        sys.path.insert(0, str(path.parent.resolve()))
        try:
            spec.loader.exec_module(source)
        finally:
            sys.path.pop(0)
    except AttnscopeError:
        raise
    except Exception as error:
        raise ModelError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    return source


def wrap_module(module: nn.Module, tokenizer: Any, processor: Any, name: str | None) -> Model:
    """The module as a model; its tokenizer and its config describe it."""
    config: Any = getattr(module, "config", None)
    name = name or getattr(config, "_name_or_path", None) or type(module).__name__
    if tokenizer is None and processor is None:
        return Model(name, module, None)
    if hasattr(tokenizer, "encode_batch") and not callable(tokenizer):  # a tokenizers.Tokenizer
        from attnscope.models.text.reader import TextReader

        return ModuleModel(name, module, TextReader(tokenizer, name))
    if config is None:
        raise InputError(f"{name} has no config, as models of transformers have: give a tokenizers.Tokenizer")
    from attnscope.models.huggingface.model import HuggingFaceModel
    from attnscope.models.huggingface.sounds import SpeechModel
    from attnscope.models.model import hears

    def load_processor(kind: str) -> Any:
        if processor is None:
            raise InputError(f"{name} was wrapped without an image processor: pass wrap a processor")
        return processor

    writes, make = getattr(module, "can_generate", None), SpeechModel if hears(module) else HuggingFaceModel
    writer = module if writes is not None and writes() else None
    preferred = getattr(module, "generation_config", None)
    return make(name, module, tokenizer, (), writer, load_processor, preferred)
