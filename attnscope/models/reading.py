"""A tokenizer alone, for modules that come without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attnscope.attention import Token
from attnscope.errors import ModelError
from attnscope.models.tokens import tokens_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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


def load_reader(name: str, **asked: Any) -> Reader:
    """The tokenizer of ``own``, a folder, or a hub id. Raises ``ModelError``."""
    from attnscope.network.folder import BUNDLED, PRETRAINED, TOKENIZER
    from attnscope.network.tokenizer import load_tokenizer

    if name in BUNDLED:
        return Reader(load_tokenizer(PRETRAINED / name / TOKENIZER))
    from attnscope.models.huggingface import load_tokenizer as load_from_hub

    backend = getattr(load_from_hub(name, **asked), "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"the tokenizer of {name} is not one of the tokenizers library: choose another")
    backend.no_padding()  # some files ask for a fixed length
    backend.no_truncation()
    return Reader(backend)
