"""Any PyTorch module in a Python file or an importable module: ``model.py:Name`` or ``package.module:Name``.

Loading one runs the file: it can do anything that its reader can.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Axis, Kind, Token
from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.models.generation import Drawing, account, opened, written
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model
from attnscope.models.reader import Reader


class ModuleModel(Model):
    """A user's own module, that reads token ids ``[1, token]`` of some tokenizer, or tensors as they are."""

    def __init__(self, name: str, module: nn.Module, reader: Reader) -> None:
        super().__init__(name, module, None)
        self.reader = reader

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """Token ids as the module's one argument, labelled with the tokenizer's tokens."""
        ids, tokens = self.reader.read(text, second)
        keep, notes = self._fit(len(ids), max_tokens=max_tokens, truncate=truncate)
        if keep is not None:
            _, tokens = self.reader.read(text, second, keep)
        return self._prepared(tokens, notes)

    def generate(
        self, prepared: ModelInput, count: int, *, temperature: float = 0.0, seed: int = 0
    ) -> ModelInput:
        """The text with up to ``count`` tokens written on, by whole passes; one more shows them all.

        The module returns the scores of the next token behind every token or behind the last one, alone, as
        ``logits`` or before other results.
        """
        if not prepared.tokens:
            raise InputError("tensors cannot be written on: give a text")
        drawing, ends = Drawing(temperature, seed), self.reader.ends
        tokens, notes = opened(prepared.tokens, ends)

        def scores(new: list[int]) -> Tensor:
            ids = [*(token.id for token in tokens), *new]
            return self._scores(self.module(torch.tensor([ids], device=self.device)))

        with torch.inference_mode(), self._quoting(prepared):
            new = written(scores, count, drawing, ends)
        whole = self.reader.vocabulary.continued(tokens, new)
        return self._prepared(
            whole, (*prepared.notes, *notes, account(whole[len(tokens) :], len(tokens), count, drawing))
        )

    def _scores(self, output: Any) -> Tensor:
        """The logits of the next token in what the module returned.  -> [vocabulary]"""
        found = getattr(output, "logits", output)
        found = found[0] if isinstance(found, (tuple, list)) and found else found
        size = self.reader.tokenizer.get_vocab_size()
        if not isinstance(found, Tensor) or found.ndim < 2 or found.shape[-1] < size:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ModelError(
                f"{self.name} does not write text: it returns {shape}, not scores over the {size:,} tokens "
                "of its tokenizer"
            )
        return found.reshape(-1, found.shape[-1])[-1, :size]

    def _prepared(self, tokens: tuple[Token, ...], notes: tuple[str, ...]) -> ModelInput:
        axes: dict[Kind, tuple[Axis, Axis]] = {"encoder": (tokens, tokens), "decoder": (tokens, tokens)}
        argument = torch.tensor([[token.id for token in tokens]], device=self.device)  # [1, token]
        return ModelInput({}, axes, tokens, notes, arguments=(argument,))

    def prepare_tensors(self, tensors: Mapping[str, Tensor]) -> ModelInput:
        """The user's own tensors, by the names of the forward's arguments, or numbered ``0``, ``1``, ..."""
        placed = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        if all(name.isdigit() for name in placed):
            return ModelInput({}, {}, (), arguments=tuple(placed[name] for name in sorted(placed, key=int)))
        parameters = inspect.signature(self.module.forward).parameters
        unknown = [name for name in placed if name not in parameters]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise InputError(
                f"{self.name} has no input {unknown[0]!r}: its forward takes {', '.join(parameters)}; "
                "name the tensors so, or number them 0, 1, ..."
            )
        return ModelInput(placed, {}, ())


def load_module(name: str, *, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
    """The module that ``FILE.py:NAME`` or ``package.module:NAME`` stands for.

    ``NAME`` is an ``nn.Module``, or a class or function that makes one when called without arguments.
    Raises ``ModelError``.
    """
    where, _, attribute = name.rpartition(":")
    source = _import(where)
    found: Any = source
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [known for known in vars(source) if not known.startswith("_")]
            raise ModelError(f"no {attribute!r} in {where}: it has {', '.join(public) or 'nothing'}")
        found = getattr(found, part)
    if not isinstance(found, nn.Module) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise ModelError(
                f"{name} cannot be called without arguments ({type(error).__name__}: {error}): write a "
                "function that makes the module, and name that"
            ) from error
    if not isinstance(found, nn.Module):
        raise ModelError(f"{name} is {type(found).__name__}, not a torch.nn.Module or what makes one")
    return found.to(device=device, dtype=dtype)


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
