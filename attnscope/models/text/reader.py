"""Models that read text with a separate tokenizer: attnscope's own encoder, and modules in files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attnscope.attention import Token
from attnscope.errors import InputError, ModelError
from attnscope.models.foreign import Source, explained
from attnscope.models.inputs import WHOLE, Limit, ModelInput, Objective, text_axes
from attnscope.models.model import Fit, Model
from attnscope.models.text.tokens import (
    GREEDY,
    Encoded,
    Sampling,
    Vocabulary,
    describe_generation,
    generate_ids,
    mark_unknown,
    repeat_random,
    strip_end,
    tokens_of,
)
from attnscope.network import folder
from attnscope.network.encoder import Encoder
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

    def read(self, text: str, second: str | None, fit: Fit) -> Encoded:
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
        return Encoded(reading.tokens[:keep], (*reading.notes, *notes))  # special tokens are cut, too

    def read_all(self, texts: Sequence[tuple[str, ...]], most: int) -> Iterator[Encoded | None]:
        """The tokens of many texts or pairs; empty for one with more than ``most``."""
        texts = [tuple(part[:MOST_CHARACTERS] for part in text) for text in texts]
        begins = accumulate((sum(map(len, text)) for text in texts), initial=0)
        # at most one longest text at a time: tokenizing takes memory
        for _, group in groupby(zip(texts, begins, strict=False), lambda pair: pair[1] // MOST_CHARACTERS):
            some = [text for text, _ in group]
            with explained(f"the tokenizer of {self.name}"):
                encodings = self.tokenizer.encode_batch([text if len(text) > 1 else text[0] for text in some])
            for text, encoding in zip(some, encodings, strict=True):
                yield None if len(encoding) > most else self._reading(encoding, text)

    def _reading(self, encoding: Encoding, texts: Sequence[str]) -> Encoded:
        spelling = getattr(self.tokenizer.model, "unk_token", None)
        unknown = None if spelling is None else self.tokenizer.token_to_id(spelling)
        return Encoded(*mark_unknown(tokens_of(encoding, texts), unknown, spelling))

    def _encode(self, text: str, second: str | None) -> Encoding:
        with explained(f"the tokenizer of {self.name}"):
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

    def prepare(self, text: str, second: str | None = None, limit: Limit = WHOLE) -> ModelInput:
        """The inputs and labelled axes of a text or of a pair."""
        encoded = self.reader.read(text, second, self.fit([text, second or ""], limit))
        return self.label(encoded.tokens, encoded.notes)

    def repeat_random(self, count: int, seed: int = 0) -> ModelInput:
        """``count`` random tokens twice, between the special tokens of a text."""
        frame = self.reader.read("a", None, lambda count: (None, ()))
        size = self.reader.tokenizer.get_vocab_size()
        encoded = repeat_random(frame, self.reader.vocabulary, size, count, seed)
        self._require_room(count, len(encoded.tokens))
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
        self, texts: Sequence[tuple[str, ...]], limit: Limit = WHOLE, *, chat: bool = False
    ) -> list[ModelInput | InputError]:
        """``prepare`` for many texts or pairs, tokenized together."""
        if chat:
            return super().prepare_all(texts, limit, chat=True)
        most = min(each for each in (limit.max_tokens, self.positions) if each is not None)
        made = list[ModelInput | InputError]()
        for text, encoded in zip(texts, self.reader.read_all(texts, most), strict=True):
            if encoded is None or max(map(len, text)) > MOST_CHARACTERS:
                made += super().prepare_all([text], limit)
            else:
                made.append(self.label(encoded.tokens, encoded.notes))
        return made

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
        mask = None if self.encoder.config.causal else self.reader.tokenizer.token_to_id(folder.MASK)
        return Objective("ids", mask, self.reader.vocabulary)

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """One pass: scores over the vocabulary.  [target], [target] -> [target, vocabulary]"""
        return self.encoder.logits(self.encoder(**prepared.inputs)[copies, at])


def load_own(name: str, *, device: torch.device, dtype: torch.dtype | None = None) -> OwnModel:
    """``own``, ``own-causal`` or a folder that attnscope saved."""
    with explained(f"loading {name}"):
        encoder, tokenizer = folder.load_encoder(folder.folder_of(name))
    notes = [] if encoder.config.trained else ["untrained: the weights are random, drawn from a fixed seed"]
    return OwnModel(name, encoder.to(device=device, dtype=dtype), tokenizer, notes)


def load_reader(name: str) -> TextReader:
    """The tokenizer of ``own``, a folder, or a hub id. Raises ``ModelError``."""
    if name in folder.BUNDLED:
        return TextReader(folder.load_tokenizer(folder.folder_of(name) / folder.TOKENIZER), name)
    source, config = Source(name), None
    if source.folder is None or (source.folder / "config.json").is_file():
        config = source.load_config()
    else:  # a tokenizer alone
        source.require_harmless()
    backend = getattr(source.load_tokenizer(config), "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"the tokenizer of {name} is not one of the tokenizers library: choose another")
    backend.no_padding()  # some files set a fixed length
    backend.no_truncation()
    return TextReader(backend, name)
