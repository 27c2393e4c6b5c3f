"""The tokenizer of an encoder, read from its folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from attnscope.errors import AttnscopeError, ModelError
from attnscope.storage.regular import read_regular

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

LARGEST = 1 << 26
"""Bytes that a vocabulary may have."""


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json`` that holds the five special tokens; raises ``ModelError`` otherwise."""
    try:
        tokenizer = Tokenizer.from_buffer(read_regular(path, LARGEST))
    except AttnscopeError as error:
        raise ModelError(str(error)) from None
    except Exception as error:  # the library raises bare Exception for every sort of bad file
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
    for token in SPECIAL:
        if tokenizer.token_to_id(token) is None:
            raise ModelError(f"{path} has no token {token}, which the encoder needs")
    return tokenizer
