"""Text that a model writes on, token by token: which one comes next, and how it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Site, Token
from attnscope.axes import visible
from attnscope.capture import Record, Steps, recording
from attnscope.errors import ModelError, first_line

QUOTED = 100
"""Characters of a written text that its note quotes."""


@dataclass(frozen=True)
class Drawing:
    """How the next token is chosen: the likeliest at temperature 0, else drawn, alike for one seed."""

    temperature: float
    seed: int
    _generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self._generator.manual_seed(self.seed)

    def next(self, logits: Tensor) -> int:
        """The next token.  [vocabulary] -> its number"""
        logits = logits.float().cpu()
        if self.temperature == 0:
            return int(logits.argmax())
        chances = torch.softmax(logits / self.temperature, -1)
        return int(torch.multinomial(chances, 1, generator=self._generator))

    @property
    def phrase(self) -> str:
        """How it was chosen, in words."""
        return "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}, seed {self.seed}"


def opened(tokens: tuple[Token, ...], ends: Collection[int]) -> tuple[tuple[Token, ...], tuple[str, ...]]:
    """The tokens without the special ones that close a text, and a note if there were any."""
    stop = len(tokens)
    while stop > 1 and tokens[stop - 1].special and tokens[stop - 1].id in ends:
        stop -= 1
    if stop == len(tokens):
        return tokens, ()
    return tokens[:stop], (f"{tokens[stop].text} is left out at the end, so that the text can go on",)


def written(
    scores: Callable[[list[int]], Tensor], count: int, drawing: Drawing, ends: Collection[int]
) -> list[int]:
    """Up to ``count`` tokens, from the scores that each token before them gets; one of ``ends`` ends them.

    ``scores`` is called with the tokens written so far and returns the logits of the next one, [vocabulary].
    """
    ids: list[int] = []
    while len(ids) < count:
        following = drawing.next(scores(ids))
        if following in ends:
            break
        ids.append(following)
    return ids


def write_cached(
    model: Any,
    inputs: Mapping[str, Tensor],
    side: str,
    count: int,
    drawing: Drawing,
    ends: Collection[int],
) -> tuple[list[int], Steps | None, Record]:
    """Let a ``HuggingFaceModel`` write up to ``count`` tokens, with every step recorded.

    ``inputs[side]`` are the tokens to go on from. One token more than ``count`` is written and dropped, so
    that the last one that counts is read too and has its row. No ``Steps`` come from a model that reads the
    whole text again at every step. Raises ``ModelError`` for whatever the model raises.
    """
    from transformers import GenerationConfig

    steps, writer = Steps(), model.writer
    drawn = {"temperature": drawing.temperature, "top_k": 0, "top_p": 1.0} if drawing.temperature else {}
    config = GenerationConfig(
        max_new_tokens=count + 1, do_sample=drawing.temperature > 0, num_beams=1, **drawn
    )
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with (
            torch.inference_mode(),
            torch.random.fork_rng(devices),
            recording(model.module, [steps]) as record,
        ):
            torch.manual_seed(drawing.seed)
            whole = writer.generate(**inputs, generation_config=config)  # [1, token]
    except Exception as error:
        raise ModelError(f"{model.name} cannot write on: {first_line(error)}") from error
    new = whole[0, inputs[side].shape[1] :].tolist()
    new = new[:-1] if len(new) > count or new[-1] in ends else new
    return new, steps if _is_cached(record) else None, record


def _is_cached(record: Record) -> bool:
    """Whether every step but a site's first one brought one query."""
    met: set[Site] = set()
    for seen in record.sites:
        if seen.site in met and seen.queries > 1:
            return False
        met.add(seen.site)
    return True


def account(written: Sequence[Token], first: int, wanted: int, drawing: Drawing) -> str:
    """One note on what was written, from token ``first`` on."""
    if not written:
        return f"generated nothing, {drawing.phrase}: the model ends the text here"
    tokens = "1 token" if len(written) == 1 else f"{len(written):,} tokens"
    end = "; then the model ended the text" if len(written) < wanted else ""
    return f"generated {tokens}, {drawing.phrase}, from token {first:,} on: {_quoted(written)}{end}"


def _quoted(tokens: Sequence[Token]) -> str:
    """What tokens read, words apart; of a long text its beginning."""
    text = ""
    for before, token in zip((None, *tokens), tokens, strict=False):
        apart = before is not None and (token.word is None or token.word != before.word)
        text += " " * apart + visible(token.text)
    return text if len(text) <= QUOTED else text[: QUOTED - 1] + "…"
