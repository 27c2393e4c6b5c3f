"""A tokenizer alone, for modules that come without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attnscope.attention import Token
from attnscope.errors import ModelError
from attnscope.models.tokens import tokens_of
from attnscope.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer


END_NAMES = ("[SEP]", "</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<|eot_id|>")
"""What tokenizers call the token that ends a text."""


class Reading(NamedTuple):
    """A text as token ids and tokens."""

    ids: list[int]
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Reader:
    """Reads text with a ``tokenizers`` tokenizer."""

    tokenizer: Tokenizer

    def read(self, text: str, second: str | None = None, keep: int | None = None) -> Reading:
        """The ids and tokens of a text or a pair, cut to ``keep`` tokens if that is given."""
        if keep is not None:
            self.tokenizer.enable_truncation(keep)
        try:
            encoding = self.tokenizer.encode(text, second)
        finally:
            if keep is not None:
                self.tokenizer.no_truncation()
        return Reading(encoding.ids, tokens_of(encoding, [text] if second is None else [text, second]))

    def read_all(self, texts: Sequence[str]) -> Iterator[Reading]:
        """The ids and tokens of many texts."""
        for text, encoding in zip(texts, self.tokenizer.encode_batch(list(texts)), strict=True):
            yield Reading(encoding.ids, tokens_of(encoding, [text]))

    @property
    def vocabulary(self) -> Vocabulary:
        """How the tokenizer spells and reads numbers."""
        return Vocabulary(
            lambda ids: [self.tokenizer.id_to_token(id_) or "" for id_ in ids],
            lambda ids: self.tokenizer.decode(ids, skip_special_tokens=False),
            {id_ for id_, token in self.tokenizer.get_added_tokens_decoder().items() if token.special},
        )

    @property
    def ends(self) -> set[int]:
        """The tokens that end a text, by their usual names."""
        found = (self.tokenizer.token_to_id(name) for name in END_NAMES)
        return {id_ for id_ in found if id_ is not None}


def load_reader(name: str, **asked: Any) -> Reader:
    """The tokenizer of ``own``, a folder, or a hub id. Raises ``ModelError``."""
    from attnscope.network.folder import BUNDLED, PRETRAINED, TOKENIZER
    from attnscope.network.tokenizer import load_tokenizer

    if name in BUNDLED:
        return Reader(load_tokenizer(PRETRAINED / name / TOKENIZER))
    from attnscope.models.hub import load_tokenizer as load_from_hub

    backend = getattr(load_from_hub(name, **asked), "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"the tokenizer of {name} is not one of the tokenizers library: choose another")
    backend.no_padding()  # some files ask for a fixed length
    backend.no_truncation()
    return Reader(backend)
