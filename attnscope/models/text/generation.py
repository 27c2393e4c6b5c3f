"""Text that a model continues token by token: the choice of the next token, and the note about it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.attention import Token
from attnscope.axes import find_senses
from attnscope.progress import tell
from attnscope.text import visible

if TYPE_CHECKING:
    from torch import Tensor

CLOSING = (".", ",", ";", ":", "!", "?", ")", "]", "…")  # tokens that follow a word without a space
QUOTED = 100  # characters of a generated text that its note quotes


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the most likely at temperature 0, otherwise drawn by ``seed``."""

    temperature: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        return "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}, seed {self.seed}"


GREEDY = Sampling()


def strip_end(tokens: tuple[Token, ...], ends: Collection[int]) -> tuple[tuple[Token, ...], tuple[str, ...]]:
    """The tokens without closing special ones, and a note if there were any."""
    stop = len(tokens)
    while stop > 1 and tokens[stop - 1].special and tokens[stop - 1].id in ends:
        stop -= 1
    if stop == len(tokens):
        return tokens, ()
    return tokens[:stop], (f"{tokens[stop].text} is left out at the end, so that the text can go on",)


def generate_ids(
    scores: Callable[[list[int]], Tensor], count: int, sampling: Sampling, ends: Collection[int]
) -> list[int]:
    """Up to ``count`` tokens, each chosen from the scores given those before it; one of ``ends`` stops.

    ``scores`` is called with the tokens generated so far and returns the logits of the next, [vocabulary].
    """
    import torch

    ids, generator = list[int](), torch.Generator().manual_seed(sampling.seed)
    while len(ids) < count:
        logits = scores(ids).float().cpu()
        if sampling.temperature:
            probabilities = torch.softmax(logits / sampling.temperature, -1)
            following = int(torch.multinomial(probabilities, 1, generator=generator))
        else:
            following = int(logits.argmax())
        if following in ends:
            break
        ids.append(following)
        tell("token", len(ids), count)
    return ids


def describe_generation(tokens: Sequence[Token], first: int, count: int, sampling: Sampling) -> str:
    """A note on the generated tokens, from token ``first`` on, of ``count`` requested."""
    if not tokens:
        return f"generated nothing, {sampling}: the model ends the text here"
    number = "1 token" if len(tokens) == 1 else f"{len(tokens):,} tokens"
    end = "; then the model ended the text" if len(tokens) < count else ""
    text = spell_tokens(tokens)
    quoted = text if len(text) <= QUOTED else text[: QUOTED - 1] + "…"
    return f"generated {number}, {sampling}, from token {first:,} on: {quoted}{end}"


def spell_tokens(tokens: Sequence[Token]) -> str:
    """The text of tokens, words apart; for a picture or a sound, its name alone."""
    text = ""
    senses = find_senses(tokens)
    for before, token, earlier, sense in zip((None, *tokens), tokens, (None, *senses), senses, strict=False):
        if sense is not None:
            text += f"{' ' * bool(text)}[{sense}]" if sense != earlier else ""
            continue
        apart = before is not None and (token.word is None or token.word != before.word)
        apart = apart and token.text not in CLOSING and not (_is_wide(text[-1:]) and _is_wide(token.text[:1]))
        text += " " * apart + visible(token.text)
    return text


def _is_wide(letter: str) -> bool:
    """Whether a letter's script has no spaces between words."""
    return bool(letter) and unicodedata.east_asian_width(letter) in "WF"
