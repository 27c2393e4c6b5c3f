"""A tokenizer the other way round: from the numbers that a model writes to tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from attnscope.attention import Token
from attnscope.models.text.tokens import readable, tokens_of_spellings

BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What bytes that are no whole character decode to."""


@dataclass(frozen=True)
class Vocabulary:
    """How token numbers are spelled and read: a tokenizer's own functions."""

    spell: Callable[[list[int]], list[str | None]]
    decode: Callable[[list[int]], str]
    special: Collection[int]

    def extend(self, tokens: Sequence[Token], ids: Sequence[int]) -> tuple[Token, ...]:
        """``tokens`` and those of ``ids`` behind them; the first of these may go on with the last word."""
        before = [token.id for token in tokens]
        every = [*before, *ids]
        spelled = tokens_of_spellings(every, self.spell(every), self.special)
        shift = _words(tokens) - _words(spelled[: len(before)])
        segment = tokens[-1].segment if tokens else 0
        new = [
            replace(
                token,
                text=text,
                segment=segment,
                word=None if token.word is None else token.word + shift,
            )
            for token, text in zip(spelled[len(before) :], self._texts(spelled[len(before) :]), strict=True)
        ]
        return (*tokens, *new)

    def _texts(self, tokens: Sequence[Token]) -> list[str]:
        """What each token reads; tokens that are parts of one character all read as that character."""
        texts: list[str] = []
        waiting: list[int] = []
        for token in tokens:
            if token.special:
                texts += [BROKEN] * len(waiting) + [token.text]
                waiting = []
                continue
            alone = self.decode([token.id])
            together = self.decode([*waiting, token.id])
            if BROKEN in together and BROKEN in alone:
                waiting.append(token.id)
            elif waiting and BROKEN not in together:
                texts += [together.strip() or together] * (len(waiting) + 1)
                waiting = []
            else:
                texts += [BROKEN] * len(waiting) + [readable(alone) or token.text]
                waiting = []
        return texts + [BROKEN] * len(waiting)


def _words(tokens: Sequence[Token]) -> int:
    """How many words tokens have been numbered with."""
    return max((token.word for token in tokens if token.word is not None), default=-1) + 1
