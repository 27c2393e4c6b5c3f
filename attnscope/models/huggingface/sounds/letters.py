"""What a model with a CTC head reads in a sound: at each frame a letter of its vocabulary, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnscope.attention import Token
from attnscope.axes.places import READ
from attnscope.axes.weights import Array
from attnscope.models.inputs import Letters
from attnscope.models.text.tokens import BEGINS, tokens_of_ids

BOUNDARY = "|"
"""What stands before a piece that begins a word: what CTC's own vocabularies write between words."""


def is_ctc(config: Any) -> bool:
    """Whether a folder was saved with a CTC head."""
    from transformers import AutoModelForCTC

    made = AutoModelForCTC._model_mapping.get(type(config), None)
    return made is not None and made.__name__ in (config.architectures or ())


def spell_letters(ids: Array, seconds: float, tokenizer: Any) -> Letters | None:
    """What is heard in each frame of ``seconds``; ``None`` where the folder has no token for nothing."""
    blank = getattr(tokenizer, "pad_token_id", None)  # that is the blank of transformers' CTC tokenizers
    if not isinstance(blank, int):
        return None
    heard = list(dict.fromkeys(ids.tolist()))
    spellings = tokenizer.convert_ids_to_tokens(heard)
    read = {token.id: token.text for token in tokens_of_ids(tokenizer, heard, ())}
    begin = {
        id_ for id_, spelling in zip(heard, spellings, strict=True) if (spelling or "").startswith(BEGINS)
    }
    boundary = getattr(tokenizer, "word_delimiter_token_id", None)
    return Letters(
        ids, seconds, blank, read, boundary if isinstance(boundary, int) else None, frozenset(begin)
    )


def name_letters(tokens: Sequence[Token], letters: Letters) -> tuple[Token, ...]:
    """Frames with what is heard in each behind its time: ``0.42 s · h``. Blanks add nothing.

    Where an encoder has joined neighbours, a frame holds what is heard in each of them, repeated ones once.
    """
    each = len(letters.ids) // len(tokens)
    named = []
    for number, token in enumerate(tokens):
        inside = letters.ids[number * each : (number + 1) * each].tolist()
        kept = [id_ for id_, before in zip(inside, [None, *inside], strict=False) if id_ != before]
        text = "".join(
            BOUNDARY * (id_ in letters.begin) + letters.read[id_] for id_ in kept if id_ != letters.blank
        )
        name = token.text.removesuffix(" s") + READ + text
        named.append(token if token.special or not text else replace(token, text=name))
    return tuple(named)
