"""What is said in a sound: tokens with their times, and the words that they are pieces of."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnscope.attention import Token
from attnscope.models.text.vocabulary import BROKEN, Vocabulary

MARK = "▁"
"""What spellings begin words with, where the text that they decode to has lost the space."""


@dataclass(frozen=True)
class SaidToken:
    """A token of what is said, and when it begins and ends, in seconds."""

    token: Token
    begin: float
    end: float


@dataclass(frozen=True)
class Word:
    """A word with the punctuation at it, and when it begins and ends, in seconds."""

    text: str
    begin: float
    end: float


def join_words(tokens: Sequence[SaidToken], vocabulary: Vocabulary) -> tuple[Word, ...]:
    """The words that tokens are pieces of: a space begins one, and so does a wide letter, as in Chinese."""
    words: list[Word] = []
    for text, begins, piece in _pieces(tokens, vocabulary):
        if begins or not words:
            words.append(Word(text, piece[0].begin, piece[-1].end))
        else:
            words[-1] = Word(words[-1].text + text, words[-1].begin, piece[-1].end)
    stripped = (Word(word.text.strip(), word.begin, word.end) for word in words)
    return tuple(word for word in stripped if word.text)


def _pieces(
    tokens: Sequence[SaidToken], vocabulary: Vocabulary
) -> Iterator[tuple[str, bool, list[SaidToken]]]:
    """Whole characters: their text, whether they begin a word, and the tokens that they are made of."""
    waiting: list[SaidToken] = []
    for number, said in enumerate(tokens):
        if said.token.special:
            continue
        waiting.append(said)
        text = vocabulary.decode([one.token.id for one in waiting])
        more = number + 1 < len(tokens) and not tokens[number + 1].token.special
        if text.endswith(BROKEN) and more and len(waiting) < 4:  # bytes of one character
            continue
        spelled = vocabulary.spell([waiting[0].token.id])[0] or ""
        begins = text[:1].isspace() or spelled.startswith(MARK) or is_wide(text)
        yield text, begins, waiting
        waiting = []


def is_wide(text: str) -> bool:
    """Whether a text begins with a letter of a script that writes no spaces."""
    letter = text[:1].isalpha()
    return letter and (unicodedata.east_asian_width(text[0]) == "W" or text[0] in THAI_TO_KHMER)


THAI_TO_KHMER = {
    chr(code)
    for first, last in ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF))
    for code in range(first, last + 1)
}
"""Thai, Lao, Burmese and Khmer."""
