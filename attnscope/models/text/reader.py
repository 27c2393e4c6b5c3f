"""Models that read token ids, with a tokenizer beside them: attnscope's own encoder, and any PyTorch module.

A module is named by ``model.py:Name`` or ``package.module:Name``. Loading it runs the file, with all of the
user's rights.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnscope.attention import Token
from attnscope.capture.record import is_within
from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.models.inputs import NO_LIMIT, Limit, ModelInput, Objective, text_axes
from attnscope.models.model import Fit, Model, reads_sound
from attnscope.models.text.tokens import (
    GREEDY,
    NUMBERS,
    Sampling,
    TextTokens,
    Vocabulary,
    describe_generation,
    generate_ids,
    mark_unknown,
    strip_end,
    tokens_of_encoding,
)
from attnscope.models.untrusted_folder import ModelSource, foreign_work
from attnscope.network import MASK, TOKENIZER, Encoder, folder_of, load_encoder, load_tokenizer
from attnscope.registry import BUNDLED
from attnscope.text import MOST_CHARACTERS

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


END_NAMES = ("[SEP]", "</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<|eot_id|>")
"""Usual names of the token that ends a text."""


@dataclass(frozen=True)
class TextReader:
    """Reads text with the ``tokenizers`` tokenizer of the model ``name``."""

    tokenizer: Tokenizer
    name: str

    def read(self, text: str, second: str | None, fit: Fit) -> TextTokens:
        """The tokens of a text or a pair, cut as ``fit`` says; only kept ones are built."""
        text, second = text[:MOST_CHARACTERS], second and second[:MOST_CHARACTERS]
        encoding = self._encode(text, second)
        keep, notes = fit(len(encoding))
        if keep is not None:
            del encoding  # a million tokens take 400 MB
            self.tokenizer.enable_truncation(keep)
            try:
                encoding = self._encode(text, second)
            finally:
                self.tokenizer.no_truncation()
        reading = self._reading(encoding, [text] if second is None else [text, second])
        return TextTokens(reading.tokens[:keep], (*reading.notes, *notes))  # special tokens are cut, too

    def read_all(self, texts: Sequence[tuple[str, ...]], most: int) -> Iterator[TextTokens | None]:
        """The tokens of many texts or pairs; empty for one with more than ``most``."""
        texts = [tuple(part[:MOST_CHARACTERS] for part in text) for text in texts]
        begins = accumulate((sum(map(len, text)) for text in texts), initial=0)
        # at most one longest text at a time: tokenizing takes memory
        for _, group in groupby(zip(texts, begins, strict=False), lambda pair: pair[1] // MOST_CHARACTERS):
            some = [text for text, _ in group]
            with foreign_work(f"the tokenizer of {self.name}"):
                encodings = self.tokenizer.encode_batch([text if len(text) > 1 else text[0] for text in some])
            for text, encoding in zip(some, encodings, strict=True):
                yield None if len(encoding) > most else self._reading(encoding, text)

    def _reading(self, encoding: Encoding, texts: Sequence[str]) -> TextTokens:
        spelling = getattr(self.tokenizer.model, "unk_token", None)
        unknown = None if spelling is None else self.tokenizer.token_to_id(spelling)
        return TextTokens(*mark_unknown(tokens_of_encoding(encoding, texts), unknown, spelling))

    def _encode(self, text: str, second: str | None) -> Encoding:
        with foreign_work(f"the tokenizer of {self.name}"):
            return self.tokenizer.encode(text, second)

    @property
    def vocabulary(self) -> Vocabulary:
        """How the tokenizer spells and reads numbers."""
        return Vocabulary(
            lambda ids: [self.tokenizer.id_to_token(id_) for id_ in ids],
            lambda ids: self.tokenizer.decode(ids, skip_special_tokens=False),
            {id_ for id_, token in self.tokenizer.get_added_tokens_decoder().items() if token.special},
        )

    @property
    def mask(self) -> int | None:
        """The mask token, by its usual names."""
        ids = (self.tokenizer.token_to_id(name) for name in ("[MASK]", "<mask>"))
        return next((id_ for id_ in ids if id_ is not None), None)

    @property
    def ends(self) -> set[int]:
        """The tokens that end a text, by their usual names."""
        ids = (self.tokenizer.token_to_id(name) for name in END_NAMES)
        return {id_ for id_ in ids if id_ is not None}


class ReaderModel(Model):
    """A model that reads the token ids of one text and generates by full passes, without a cache."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        reader: TextReader,
        positions: int | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(name, module, positions, notes)
        self.reader = reader

    @abstractmethod
    def label(self, tokens: tuple[Token, ...], notes: tuple[str, ...]) -> ModelInput:
        """The ids of tokens as the model's input, labelled."""

    @abstractmethod
    def next_scores(self, ids: Tensor) -> Tensor:
        """The logits of the token after a text.  [1, token] -> [vocabulary]"""

    def prepare(self, text: str, second: str | None = None, limit: Limit = NO_LIMIT) -> ModelInput:
        """The inputs and labelled axes of a text or of a pair."""
        encoded = self.reader.read(text, second, self.fit([text, second or ""], limit))
        return self.label(encoded.tokens, encoded.notes)

    def repeat_random(self, count: int, seed: int = 0) -> ModelInput:
        """``count`` random tokens twice, between the special tokens of a text."""
        frame = self.reader.read("a", None, lambda count: (None, ()))
        size = self.reader.tokenizer.get_vocab_size()
        encoded = self._repeat(frame, self.reader.vocabulary, size, count, seed)
        return self.label(encoded.tokens, encoded.notes)

    def generate(self, prepared: ModelInput, count: int, sampling: Sampling = GREEDY) -> ModelInput:
        """The text with up to ``count`` more tokens, by full passes; one more pass shows them all."""
        if not prepared.tokens:
            raise InputError("tensors cannot be continued: give a text")
        ends = self.reader.ends
        tokens, notes = strip_end(prepared.tokens, ends)
        self._require_positions(len(tokens), count)

        def scores(new: list[int]) -> Tensor:
            ids = [*(token.id for token in tokens), *new]
            return self.next_scores(torch.tensor([ids], device=self.device))

        with torch.inference_mode(), self.threads(prepared), self._quoting(prepared):
            new = generate_ids(scores, count, sampling, ends)
        whole = self.reader.vocabulary.extend(tokens, new)
        note = describe_generation(whole[len(tokens) :], len(tokens), count, sampling)
        return replace(self.label(whole, (*prepared.notes, *notes, note)), written=len(tokens))


class OwnModel(ReaderModel):
    """attnscope's own encoder with its tokenizer."""

    forkable = True

    def __init__(self, name: str, module: Encoder, tokenizer: Tokenizer, notes: Sequence[str] = ()) -> None:
        super().__init__(name, module, TextReader(tokenizer, name), module.config.max_positions, notes)
        self.encoder = module

    def prepare_all(
        self, texts: Sequence[tuple[str, ...]], limit: Limit = NO_LIMIT, *, chat: bool = False
    ) -> list[ModelInput | InputError]:
        """``prepare`` for many texts or pairs, tokenized together."""
        if chat:
            return super().prepare_all(texts, limit, chat=True)
        most = min(each for each in (limit.max_tokens, self.positions) if each is not None)
        results = list[ModelInput | InputError]()
        for text, encoded in zip(texts, self.reader.read_all(texts, most), strict=True):
            if encoded is None or max(map(len, text)) > MOST_CHARACTERS:
                results += super().prepare_all([text], limit)
            else:
                results.append(self.label(encoded.tokens, encoded.notes))
        return results

    def label(self, tokens: tuple[Token, ...], notes: tuple[str, ...]) -> ModelInput:
        """The ids of tokens as the encoder's input; a pair is read as two segments."""
        device = self.encoder.embedding.weight.device  # once, because ``self.device`` searches the module
        inputs = {"ids": torch.tensor([[token.id for token in tokens]], device=device)}  # [1, token]
        if self.encoder.config.segments > 1:
            inputs["segments"] = torch.tensor([[token.segment for token in tokens]], device=device)
        return ModelInput(inputs, text_axes(tokens), tokens, notes)

    def generate(self, prepared: ModelInput, count: int, sampling: Sampling = GREEDY) -> ModelInput:
        """The text with up to ``count`` more tokens, if the encoder is causal."""
        if not self.encoder.config.causal:
            cannot = "reads in both directions and cannot continue a text: own-causal does"
            raise ModelError(f"{self.name} {cannot}")
        return super().generate(prepared, count, sampling)

    def next_scores(self, ids: Tensor) -> Tensor:
        """The logits of the token after a text.  [1, token] -> [vocabulary]"""
        return self.encoder.logits(self.encoder(ids)[0, -1])

    @property
    def objective(self) -> Objective:
        """Masked tokens, or next tokens for a causal encoder."""
        mask = None if self.encoder.config.causal else self.reader.tokenizer.token_to_id(MASK)
        return Objective("ids", mask, self.reader.vocabulary)

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """One pass: scores over the vocabulary.  [target], [target] -> [target, vocabulary]"""
        return self.encoder.logits(self.encoder(**prepared.inputs)[copies, at])


PROBED = (8, 3, 2)
"""Length of the text that tests whether a module is causal; shorter for a short context, and on a GPU, where
a position that does not exist ends all work of the process."""
FAILING = (IndexError, RuntimeError, ValueError)  # what a module raises for more tokens than it has positions
NUMBERED = "tokens are shown by number: there is no tokenizer"


class ModuleModel(ReaderModel):
    """A user's own module, which reads token ids ``[1, token]`` of some tokenizer, or plain tensors."""

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
        for count in PROBED if self.device.type == "cpu" else PROBED[-1:]:
            ids = torch.arange(count, device=self.device)[None] % 2  # valid in every vocabulary
            other = ids.clone()
            other[0, -1] = 1 - other[0, -1]
            try:
                with torch.no_grad(), self._quoting(ModelInput({}, {}, (), arguments=(ids,))):
                    scores, other_scores = self._scores(ids), self._scores(other)
                break
            except ModelError as error:
                if count == PROBED[-1] or not isinstance(error.__cause__, FAILING):
                    raise
        if scores.shape[:2] != (1, count):
            raise ModelError(f"{self.name} does not score every token: it returns {list(scores.shape)}")
        causal = torch.allclose(scores[0, :-1].float(), other_scores[0, :-1].float(), rtol=0, atol=1e-4)
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


def load_own(name: str, *, device: torch.device, dtype: torch.dtype | None = None) -> OwnModel:
    """``own``, ``own-causal`` or a folder that attnscope saved."""
    with foreign_work(f"loading {name}"):
        encoder, tokenizer = load_encoder(folder_of(name))
    notes = [] if encoder.config.trained else ["untrained: the weights are random, drawn from a fixed seed"]
    return OwnModel(name, encoder.to(device=device, dtype=dtype), tokenizer, notes)


def load_reader(name: str) -> TextReader:
    """The tokenizer of ``own``, a folder, or a hub id. Raises ``ModelError``."""
    if name in BUNDLED:
        return TextReader(load_tokenizer(folder_of(name) / TOKENIZER), name)
    source, config = ModelSource(name), None
    if source.folder is None or (source.folder / "config.json").is_file():
        config = source.load_config()
    else:  # a tokenizer alone
        source.require_harmless()
    backend = getattr(source.load_tokenizer(config), "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"the tokenizer of {name} is not one of the tokenizers library: choose another")
    return _whole_texts(backend, name)


def _whole_texts(backend: Any, name: str) -> TextReader:
    """A tokenizer without the fixed length that some set; the caller's own is left as it is."""
    with suppress(Exception):  # one with parts in Python cannot be copied
        backend = copy.deepcopy(backend)
    backend.no_padding()
    backend.no_truncation()
    return TextReader(backend, name)


def load_module(name: str, *, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
    """The module of that name, or that what has it makes without arguments. Raises ``ModelError``."""
    where, _, attribute = name.rpartition(":")
    source = _import(where)
    try:
        module = attrgetter(attribute)(source)
    except AttributeError:
        public = [each for each in vars(source) if not each.startswith("_")]
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
    """The module as a model; its tokenizer and its config describe it.

    What holds one model of transformers, as sentence encoders, classifiers and trainers do, reads texts by
    that. Raises ``InputError`` if it holds several.
    """
    config: Any = getattr(module, "config", None)
    name = name or getattr(config, "_name_or_path", None) or type(module).__name__
    inside = models_inside(module)
    if tokenizer is None and processor is None:
        tokenizer = _find_tokenizer(module) if inside and "" not in inside else None
        if tokenizer is None:
            return Model(name, module, None)
    backend = getattr(tokenizer, "backend_tokenizer", None if callable(tokenizer) else tokenizer)
    if hasattr(backend, "encode_batch") and (backend is tokenizer or not inside):  # of the tokenizers library
        return ModuleModel(name, module, _whole_texts(backend, name))
    if len(inside) != 1:
        several = f"holds several models, {', '.join(inside)}: wrap the one that reads the text"
        none = "holds no model of transformers: give a tokenizers.Tokenizer"
        raise InputError(f"{name} {several if inside else none}")
    ((path, model),) = inside.items()
    notes = (f"{path} reads the text, the model inside of {name}",) if path else ()
    return _wrap_transformers(model, tokenizer, processor, name, notes)


def _find_tokenizer(module: nn.Module) -> Any:
    """The tokenizer that a part of a module has, as sentence encoders do."""
    beside = (getattr(part, "tokenizer", None) for part in module.modules())
    return next((each for each in beside if hasattr(each, "convert_ids_to_tokens")), None)


def _wrap_transformers(
    module: nn.Module, tokenizer: Any, processor: Any, name: str, notes: tuple[str, ...]
) -> Model:
    from attnscope.models.huggingface.model import HuggingFaceModel
    from attnscope.models.huggingface.sounds import SpeechModel

    def load_processor(kind: str) -> Any:
        if processor is None:
            raise InputError(f"{name} was wrapped without an image processor: pass wrap(processor=...)")
        return processor

    kind = SpeechModel if reads_sound(module) else HuggingFaceModel
    writes = getattr(module, "can_generate", None)
    writer = module if writes is not None and writes() else None
    preferred = getattr(module, "generation_config", None)
    return kind(name, module, tokenizer, notes, writer, load_processor, preferred)


def models_inside(module: nn.Module) -> dict[str, Any]:
    """The outermost models of transformers in a module by their paths; itself under ``""``."""
    models = dict[str, Any]()
    for path, part in module.named_modules():
        whole = hasattr(part, "config") and hasattr(part, "get_input_embeddings")
        if whole and not any(is_within(path, outer) for outer in models):
            models[path] = part
    return models
