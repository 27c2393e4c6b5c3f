"""Hugging Face models that read text: encoder-only, decoder-only and encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Axis, Kind, Token
from attnscope.errors import InputError, ModelError, first_line
from attnscope.models.generation import Drawing, account, opened, write_cached
from attnscope.models.images import read_image
from attnscope.models.inputs import ModelInput, Objective
from attnscope.models.model import Model, accepts
from attnscope.models.tokens import tokens_of, tokens_of_ids
from attnscope.models.vision import fitting, patch_axes
from attnscope.models.vocabulary import Vocabulary


@dataclass(frozen=True)
class _Read:
    """One tokenized text, or pair: what the tokenizer returned and the tokens of it."""

    fields: Mapping[str, list[int]]
    tokens: tuple[Token, ...]
    notes: tuple[str, ...] = ()


class HuggingFaceModel(Model):
    """A transformers model with its tokenizer; ``writer`` is the model with its language-model head."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        tokenizer: Any,
        notes: Sequence[str] = (),
        *,
        positions: int | None = None,
        writer: Any = None,
        processor: Callable[[], Any] | None = None,
    ) -> None:
        config: Any = module.config
        super().__init__(name, module, positions, notes)
        self.writer = writer
        self.tokenizer = tokenizer
        self._processor = processor
        self._towers = hasattr(module, "get_text_features") and hasattr(module, "get_image_features")
        self.encoder_decoder = bool(config.is_encoder_decoder)
        self.settings: dict[str, Any] = {"use_cache": False} if accepts(module, "use_cache") else {}

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """The inputs and labelled axes of a text; a second text is its pair, or a decoder's target.

        Without a target an encoder-decoder model reads the text on both sides, and a note says so; one that
        is to write begins with its start token.
        """
        if self.encoder_decoder:
            return self._source_and_target(self._read([text], max_tokens, truncate), second, truncate)
        texts = [text] if second is None else [text, second]
        read = self._read(texts, max_tokens, truncate)
        if second is not None and not _parted(read.tokens):
            read = replace(read, notes=(*read.notes, f"{self.name} joins the two texts without a separator"))
        prepared, entry = self._one(read), "get_text_features"
        if not self._towers:
            return prepared
        inputs = {
            name: prepared.inputs[name] for name in prepared.inputs if accepts(self.module, name, entry)
        }
        return replace(prepared, inputs=inputs, entry=entry)

    def prepare_image(self, path: Path, text: str | None = None) -> ModelInput:
        """An image for the image tower of a model that has one, or with a text for both of its towers."""
        alone = hasattr(self.module, "get_image_features")
        if self._processor is None or not accepts(self.module, "pixel_values"):
            return super().prepare_image(path)
        if text is not None and alone and not self._towers:
            raise InputError(f"{self.name} reads the image as a part of its text: give --image alone")
        if text is None and not alone:
            raise InputError(f"{self.name} reads a text beside the image: give both")
        fields, picture = read_image(path, self._processor(), self.module)
        prepared = ModelInput({}, patch_axes(picture), picture.tokens, picture=picture)
        if text is None:
            entry = "get_image_features"
            inputs = {name: fields[name] for name in fields if accepts(self.module, name, entry)}
            return replace(prepared, inputs=self._placed(inputs), entry=entry)
        read = self._read([text], None, False)
        inputs = {name: tensor for name, tensor in fields.items() if accepts(self.module, name)}
        axes = dict(prepared.axes) | {"decoder": (read.tokens, read.tokens)}
        both = self._placed(inputs) | self._tensors(read.fields)
        return replace(prepared, inputs=both, axes=axes, notes=read.notes)

    def _placed(self, fields: dict[str, Tensor]) -> dict[str, Tensor]:
        return fitting({name: tensor.to(self.device) for name, tensor in fields.items()}, self.module)

    def prepare_chat(
        self,
        text: str,
        *,
        system: str | None = None,
        reply: bool = False,
        max_tokens: int | None = None,
        truncate: bool = False,
    ) -> ModelInput:
        """A text as a user's message, by the chat template of the tokenizer."""
        if not getattr(self.tokenizer, "chat_template", None):
            return super().prepare_chat(text)
        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        try:
            chat = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply)
        except Exception as error:  # a template is a program, that may raise whatever it likes
            raise InputError(f"the chat template of {self.name} refuses this: {first_line(error)}") from error
        read = self._read([chat], max_tokens, truncate, templated=True)
        return self._source_and_target(read, None, truncate) if self.encoder_decoder else self._one(read)

    def generate(
        self, prepared: ModelInput, count: int, *, temperature: float = 0.0, seed: int = 0
    ) -> ModelInput:
        """The text with up to ``count`` tokens that the model writes on, recorded while it writes."""
        if self.writer is None:
            raise ModelError(f"{self.name} was loaded without what writes: load it with generative=True")
        drawing, ends = Drawing(temperature, seed), self._ends()
        side = "decoder_input_ids" if self.encoder_decoder else "input_ids"
        start: tuple[Token, ...] = prepared.axes["decoder"][0]  # type: ignore[assignment]
        tokens, notes = (start, ()) if self.encoder_decoder else opened(start, ends)
        self._room(len(tokens), count)
        inputs = {name: tensor[:, : len(tokens)] for name, tensor in prepared.inputs.items()}
        if self.encoder_decoder:
            inputs = dict(prepared.inputs)
        with self.threads(prepared):
            new, steps, record = write_cached(self, inputs, side, count, drawing, ends)
        self._attended(record)
        if not any(seen.site.kind == "decoder" for seen in record.sites):
            raise ModelError(
                f"{self.name} reads in both directions and does not write on: choose a decoder, "
                "such as own-causal"
            )
        whole = self._vocabulary().continued(tokens, new)
        notes = (*prepared.notes, *notes, account(whole[len(tokens) :], len(tokens), count, drawing))
        for name, tensor in inputs.items():
            if name == side or (not self.encoder_decoder and tensor.ndim == 2):
                more = self._tensor(new) if name == side else tensor[:, -1:].expand(-1, len(new))
                inputs[name] = torch.cat([tensor, more.to(tensor.dtype)], 1)
        axes: dict[Kind, tuple[Axis, Axis]] = dict(prepared.axes) | {"decoder": (whole, whole)}
        if self.encoder_decoder:
            axes["cross"] = (whole, prepared.axes["cross"][1])
        else:
            axes["encoder"] = (whole, whole)
        shown = prepared.tokens if self.encoder_decoder else whole
        written = replace(prepared, inputs=inputs, axes=axes, tokens=shown, notes=notes)
        if steps is None:
            note = f"{self.name} keeps no cache: shown is one pass over all tokens"
            return replace(written, notes=(*notes, note))
        return replace(written, replay=steps.replay(record, axes))

    def _one(self, read: _Read) -> ModelInput:
        axes: dict[Kind, tuple[Axis, Axis]] = {
            "encoder": (read.tokens, read.tokens),
            "decoder": (read.tokens, read.tokens),
        }
        return ModelInput(self._tensors(read.fields), axes, read.tokens, read.notes, self.settings)

    def _source_and_target(self, source: _Read, target: str | None, truncate: bool) -> ModelInput:
        start, notes = self._start(), source.notes
        if target is not None:
            wanted = self._read([target], None, truncate)
            notes += tuple(note for note in wanted.notes if note not in notes)
        elif self.writer is None:
            wanted = source
            notes = (*notes, "the decoder reads the text itself: give a second text to be its target")
        else:
            wanted = _Read({"input_ids": []}, ())
        ids = [start.id, *wanted.fields["input_ids"][:-1]]
        decoder: tuple[Token, ...] = (start, *wanted.tokens[:-1])
        inputs = self._tensors(source.fields) | {"decoder_input_ids": self._tensor(ids)}
        axes: dict[Kind, tuple[Axis, Axis]] = {
            "encoder": (source.tokens, source.tokens),
            "decoder": (decoder, decoder),
            "cross": (decoder, source.tokens),
        }
        return ModelInput(inputs, axes, source.tokens, notes, self.settings)

    def _fields(self, texts: Sequence[str], **asked: Any) -> Any:
        """What the tokenizer makes of texts. Raises ``ModelError`` if it fails, as a damaged one does."""
        try:
            return self.tokenizer(*texts, **asked)
        except Exception as error:
            raise ModelError(f"the tokenizer of {self.name} fails: {first_line(error)}") from error

    def _read(
        self, texts: Sequence[str], max_tokens: int | None, truncate: bool, *, templated: bool = False
    ) -> _Read:
        """Tokenize; a ``templated`` text brings its own special tokens."""
        asked = {"verbose": False, "add_special_tokens": not templated}
        fields = self._fields(texts, **asked)
        keep, notes = self._fit(len(fields["input_ids"]), max_tokens=max_tokens, truncate=truncate)
        if keep is not None:
            fields = self._fields(texts, truncation=True, max_length=keep, **asked)
        if not fields["input_ids"]:
            raise InputError(f"the tokenizer of {self.name} finds no token in the text")
        if fields.encodings is not None:
            tokens = tokens_of(fields.encodings[0], texts)
        else:
            tokens = tokens_of_ids(self.tokenizer, fields["input_ids"], self.tokenizer.all_special_ids)
        if templated:
            special = self._special()
            tokens = tuple(
                replace(token, special=True, word=None) if token.id in special else token for token in tokens
            )
        return _Read(dict(fields), tokens, notes)

    def _special(self) -> set[int]:
        added = self.tokenizer.added_tokens_decoder
        return {*self.tokenizer.all_special_ids, *(id_ for id_, token in added.items() if token.special)}

    @property
    def objective(self) -> Objective:
        """Hidden tokens of a masked model, else each next one. Raises ``ModelError`` without a head."""
        if self.writer is None:
            raise ModelError(f"{self.name} was loaded without its output head: load it with predicting=True")
        mask = None
        if type(self.writer).__name__.endswith("ForMaskedLM"):
            mask = self.tokenizer.mask_token_id
            if mask is None:
                raise ModelError(f"{self.name} predicts masked tokens, but its tokenizer has no mask token")
        side = "decoder_input_ids" if self.encoder_decoder else "input_ids"
        return Objective(side, mask, self._vocabulary())

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """One pass: scores over the vocabulary.  [target], [target] -> [target, vocabulary]"""
        scores: Tensor = self.writer(**prepared.inputs, **prepared.settings).logits
        return scores[copies.to(scores.device), at.to(scores.device)]

    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(
            self.tokenizer.convert_ids_to_tokens,
            lambda ids: str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)),
            self._special(),
        )

    def _ends(self) -> set[int]:
        """The tokens with which the model ends a text."""
        told = (self.writer.generation_config.eos_token_id, self.tokenizer.eos_token_id)
        return {
            end for ends in told for end in (ends if isinstance(ends, list) else [ends]) if end is not None
        }

    def _start(self) -> Token:
        """The token that a decoder begins with."""
        config: Any = self.module.config
        candidates = (
            getattr(config, "decoder_start_token_id", None),
            getattr(getattr(self.module, "generation_config", None), "decoder_start_token_id", None),
            getattr(config, "bos_token_id", None),
            getattr(config, "pad_token_id", None),
            self.tokenizer.pad_token_id,
        )
        start = next((id_ for id_ in candidates if isinstance(id_, int)), 0)
        return Token(self.tokenizer.convert_ids_to_tokens(start), start, special=True)

    def _tensors(self, fields: Mapping[str, list[int]]) -> dict[str, Tensor]:
        return {name: self._tensor(ids) for name, ids in fields.items() if accepts(self.module, name)}

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.device)  # [1, token]


def _parted(tokens: Sequence[Token]) -> bool:
    """Whether a special token stands between the two texts of a pair."""
    opening = next((i for i, token in enumerate(tokens) if token.segment == 1 and not token.special), 0)
    return opening > 0 and tokens[opening - 1].special
