"""Text as a transformers tokenizer reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from attnscope.attention import Token
from attnscope.errors import InputError, ModelError, first_line
from attnscope.models.foreign import explained, refusable
from attnscope.models.model import Fit
from attnscope.models.text.tokens import NUMBERS, Encoded, Vocabulary, mark_unknown, tokens_of, tokens_of_ids
from attnscope.text import MOST_CHARACTERS


class NoTokenizer:
    """Takes the tokenizer's place in a folder without one: tensors work, a text raises the reason."""

    def __init__(self, reason: ModelError) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise self._reason

    def __call__(self, *texts: str, **how: Any) -> NoReturn:
        """Raise ``ModelError``."""
        raise self._reason


MARGIN = 64  # tokens behind a cut that may change those before it; if they do, the whole text is read again


@dataclass(frozen=True)
class FolderReader:
    """Reads text with the ``tokenizer`` of the model ``name``."""

    name: str
    tokenizer: Any

    def read(self, texts: Sequence[str], fit: Fit | None = None, *, templated: bool = False) -> Encoded:
        """Tokenize a text or a pair, and keep as many tokens as ``fit`` allows.

        A ``templated`` text already has its special tokens. Raises ``InputError`` for an empty text,
        ``ModelError`` if the tokenizer fails, as a damaged one does.
        """
        texts = [text[:MOST_CHARACTERS] for text in texts]
        fields = self._encode(texts, templated, None)
        if not fields["input_ids"]:
            raise InputError(f"the tokenizer of {self.name} finds no token in the text")
        keep, cut = fit(len(fields["input_ids"])) if fit else (None, ())
        if keep is not None:
            fields = self._cut(texts, templated, keep, fields)
        if fields.encodings is not None:
            tokens = tokens_of(fields.encodings[0], texts)
        else:
            tokens = tokens_of_ids(self.tokenizer, fields["input_ids"], self.tokenizer.all_special_ids)
        tokens, notes = mark_unknown(tokens, self.tokenizer.unk_token_id, self.tokenizer.unk_token)
        special = self.special_ids if templated else ()  # no tokenizer splits its own special tokens
        tokens = tuple(replace(one, special=True, word=None) if one.id in special else one for one in tokens)
        return Encoded(tokens[:keep], (*notes, *cut), {name: field[:keep] for name, field in fields.items()})

    def _cut(self, texts: Sequence[str], templated: bool, keep: int, whole: Any) -> Any:
        """The first ``keep`` tokens of texts, whose ``whole`` encoding is known: a book is not read twice."""
        ids = whole["input_ids"]
        if len(texts) == 1 and whole.encodings is not None and keep + MARGIN < len(ids):
            _, end = whole.encodings[0].offsets[keep + MARGIN]
            begun = self._encode([texts[0][:end]], templated, keep)
            special = begun.encodings[0].special_tokens_mask[::-1]
            own = keep - special.index(0) if 0 in special else 0  # those before the last special ones
            if own and len(special) == keep and begun["input_ids"][:own] == ids[:own]:
                return begun
        return self._encode(texts, templated, keep)

    def _encode(self, texts: Sequence[str], templated: bool, keep: int | None) -> Any:
        """Tokenize texts, keeping at most this many tokens, special ones included."""
        cut = {} if keep is None else {"truncation": True, "max_length": keep}
        try:
            with explained(f"the tokenizer of {self.name}"):
                return self.tokenizer(*texts, verbose=False, add_special_tokens=not templated, **cut)
        except ModelError:  # there is none; the error says why
            raise
        except Exception as error:
            raise ModelError(f"the tokenizer of {self.name} fails: {first_line(error)}") from error

    @property
    def special_ids(self) -> set[int]:
        """The tokens that stand for no text."""
        added = self.tokenizer.added_tokens_decoder
        return {*self.tokenizer.all_special_ids, *(id_ for id_, token in added.items() if token.special)}

    @property
    def vocabulary(self) -> Vocabulary:
        """How the tokenizer spells and reads numbers."""
        if isinstance(self.tokenizer, NoTokenizer):
            return NUMBERS
        return Vocabulary(
            self.tokenizer.convert_ids_to_tokens,
            lambda ids: str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)),
            self.special_ids,
        )


def write_chat(
    name: str, writer: Any, messages: Sequence[Mapping[str, Any]], reply: bool, **more: Any
) -> str:
    """Messages, and ``more`` such as tools, in a chat template. Raises ``InputError`` for what it refuses."""
    with refusable(f"the chat template of {name}", f"the chat template of {name} refuses this"):
        return str(writer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply, **more))


def start_token(module: Any, tokenizer: Any) -> Token:
    """The token with which a decoder begins. Raises ``ModelError`` for a number outside any vocabulary."""
    candidates = (
        getattr(module.config, "decoder_start_token_id", None),
        getattr(getattr(module, "generation_config", None), "decoder_start_token_id", None),
        getattr(module.config, "bos_token_id", None),
        getattr(module.config, "pad_token_id", None),
        tokenizer.pad_token_id,
    )
    start = next((id_ for id_ in candidates if isinstance(id_, int)), 0)
    if not 0 <= start < 1 << 31:
        raise ModelError(f"the decoder begins with token {start:,}, which no vocabulary has")
    return Token(tokenizer.convert_ids_to_tokens(start), start, special=True)
