"""A block of rows with everything a measure may read: unmasked keys, positions, tokens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from zlib import crc32

from attnscope.attention import Token
from attnscope.axes import PICTURE_ID, SOUND_ID
from attnscope.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


Patterns: TypeAlias = Mapping[str, Callable[[tuple[Token, ...]], Iterable[int]]]
"""Parts of a text that a measure asks about, by their spelling: each finds its tokens in a text."""


class TokenFacts(NamedTuple):
    """What measures need to know about the tokens along one axis, or of a text that serves a whole batch."""

    ids: Tensor  # as all of these, [text, token]
    special: Tensor  # bool
    punctuation: Tensor  # bool
    segment: Tensor
    names: Tensor  # of special tokens by their text, see ``number_of``; -1 for all others
    patches: Tensor  # picture, row and column, [text, token, 3]; -1 for tokens that are not patches
    matches: Mapping[str, Tensor]  # bool, [text, token], the tokens that each pattern finds

    @classmethod
    def from_texts(cls, texts: Sequence[Sequence[Token]], patterns: Patterns) -> TokenFacts:
        """Gather the facts of texts with equal token counts, and what the patterns find in them."""

        def gather(fact: Callable[[Token], object]) -> Tensor:
            return torch.tensor([list(map(fact, text)) for text in texts])

        ids, special = gather(attrgetter("id")), gather(attrgetter("special"))
        names = torch.full_like(ids, -1)
        for text, place in special.nonzero().tolist():
            names[text, place] = number_of(texts[text][place].text)
        pictured = bool(((ids >= PICTURE_ID) & (ids < SOUND_ID)).any())
        patches = gather(find_patch) if pictured else torch.full((*ids.shape, 3), -1)
        matches = {name: torch.zeros_like(special) for name in patterns}
        for name, find in patterns.items():
            for text, tokens in enumerate(texts):
                matches[name][text, list(find(tuple(tokens)))] = True
        segment = gather(attrgetter("segment"))
        return cls(ids, special, gather(is_punctuation), segment, names, patches, matches)

    def part(self, start: int, stop: int, device: torch.device) -> TokenFacts:
        """The facts of the tokens ``start`` to ``stop``, on ``device``.  -> [text, stop - start]"""
        if (start, stop, device) == (0, self.ids.shape[1], self.ids.device):
            return self
        return self.map(lambda facts: facts[:, start:stop].to(device))

    def map(self, function: Callable[[Tensor], Tensor]) -> TokenFacts:
        """The same with a function applied to every tensor."""
        matches = {name: function(each) for name, each in self.matches.items()}
        facts: list[Any] = [*map(function, self[:-1]), matches]
        return TokenFacts(*facts)

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [*self[:-1], *self.matches.values()]


def number_of(name: str) -> int:
    """A number for the text of a special token."""
    return crc32(name.encode("utf-8", "surrogatepass"))


_PATCH_NAME = re.compile(r"(.*?)(\d{1,6}),(\d{1,6})", re.ASCII)


def find_patch(token: Token) -> tuple[int, int, int]:
    """Picture, row and column of a patch, from its name: "3,4", "image 2 · 3,4"; -1 for any other token."""
    match = _PATCH_NAME.fullmatch(token.text) if PICTURE_ID <= token.id < SOUND_ID else None
    return (-1, -1, -1) if match is None else (number_of(match[1]), int(match[2]), int(match[3]))


def is_punctuation(token: Token) -> bool:
    """Whether a token is all punctuation (Unicode category P); special tokens never are."""
    return not token.special and all_punctuation(token.text)


@lru_cache(maxsize=1 << 16)
def all_punctuation(text: str) -> bool:
    """Whether a text is all punctuation, spaces aside."""
    text = text.strip()
    return bool(text) and all(unicodedata.category(character)[0] == "P" for character in text)


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of one layer's attention, for all heads, and what is known about them."""

    rows: Tensor  # weights, [batch, head, row, key]
    allowed: Tensor  # keys that the mask leaves open, bool, [batch or 1, head or 1, row, key]
    start: int | None = 0  # position of the first row on the key axis; None between different sequences
    queries: TokenFacts | None = None  # of the rows; None if they have no tokens
    keys: TokenFacts | None = None  # likewise
    before: Block | None = None  # the row before the first; None if it was not read
    top: Tensor | None = None  # the largest score of each row before the softmax, if requested and known
    columns: Tensor | None = None  # the keys of rows that hold few, -1 for none, [row, key]
    all_keys: int | None = None  # the number of all keys, where rows hold few

    @cached_property
    def open_keys(self) -> Tensor:
        """Number of unmasked keys ``n_i``, in the type of the rows.  -> [batch or 1, head or 1, row]"""
        return self.allowed.sum(-1, dtype=torch.int32).to(self.rows.dtype)  # faster than in that type

    @cached_property
    def positions(self) -> Tensor:
        """Position of each row on the key axis.  -> [row]"""
        if self.start is None:
            raise ValueError("the rows of cross-attention have no position on the key axis")
        return torch.arange(self.start, self.start + self.rows.shape[-2], device=self.rows.device)

    @cached_property
    def gaps(self) -> Tensor:
        """Position of each key minus that of each row.  -> [row, key]"""
        keys = self.columns
        if keys is None:
            keys = torch.arange(self.rows.shape[-1], device=self.rows.device)
        return keys - self.positions[:, None]

    @property
    def key_count(self) -> int:
        """Length of the key axis."""
        return self.all_keys or self.rows.shape[-1]

    def of_keys(self, facts: Tensor) -> Tensor:
        """Facts of all keys, for the keys that each row holds.  [text, key] -> [text, row or 1, key]"""
        return facts[:, None] if self.columns is None else facts[:, self.columns]

    def find_key(self, key: Tensor) -> Tensor:
        """Where in its row a key of each row stands, -1 for nowhere.  [row] -> [row]"""
        if self.columns is None:
            return key
        is_it = (self.columns == key[:, None]) & (key >= 0)[:, None]  # [row, key]
        return torch.where(is_it.any(-1), is_it.int().argmax(-1), -1)

    @property
    def every_row(self) -> Tensor:
        """All True: every row counts.  -> [batch or 1, head or 1, row]"""
        return self.open_keys >= 0

    @cached_property
    def entropy(self) -> Tensor:
        """Shannon entropy in nats, with 0 log 0 = 0.  -> [batch, head, row]"""
        tiny = torch.finfo(self.rows.dtype).tiny
        return self.rows.clamp_min(tiny).log_().mul_(self.rows).sum(-1).neg_()

    @cached_property
    def largest(self) -> Tensor:
        """The largest weight of each row.  -> [batch, head, row]"""
        return self.rows.amax(-1)

    @cached_property
    def total(self) -> Tensor:
        """The sum of each row, less than 1 where a sink takes the rest.  -> [batch, head, row]"""
        return self.rows.sum(-1)

    def sums(self, factors: Tensor, places: Tensor) -> list[Tensor]:
        """Sums over keys weighted by factors, then the weights at places, 0 at -1; each [batch, head, row].

        ``factors`` are [text or 1, row, sum, key], ``places`` [place, row].
        """
        rows = self.rows
        summed = rows.transpose(1, 2) @ factors.mT.to(rows.dtype)  # [batch, row, head, sum]
        key = places.T.clamp_min(0).expand(*rows.shape[:-1], len(places))
        at = rows.gather(-1, key).masked_fill_(places.T < 0, 0)  # [batch, head, row, place]
        return [*summed.permute(3, 0, 2, 1), *at.permute(3, 0, 1, 2)]

    def baseline(self) -> Block:
        """The same block with uniform attention, ``1 / n_i`` on each of its unmasked keys."""
        share = self.allowed.to(finest(self.rows.device)) / self.open_keys.clamp_min(1)[..., None]
        before = None if self.before is None else self.before.baseline()
        top = 0 * self.open_keys
        known = self.start, self.queries, self.keys, before, top, self.columns, self.all_keys
        return EvenBlock(share, self.allowed, *known)

    def last(self) -> Block:
        """The last row, as the next block's ``before``."""
        return Block(self.rows[..., -1:, :].clone(), self.allowed[..., -1:, :].clone())


class EvenBlock(Block):
    """A block with uniform attention; its values follow from the unmasked keys alone."""

    @cached_property
    def entropy(self) -> Tensor:
        """The logarithm of the number of unmasked keys.  -> [batch or 1, head or 1, row]"""
        return self.open_keys.clamp_min(1).log()

    @cached_property
    def largest(self) -> Tensor:
        """The weight of each unmasked key.  -> [batch or 1, head or 1, row]"""
        return self.total / self.open_keys.clamp_min(1)

    @cached_property
    def total(self) -> Tensor:
        """1, or 0 where no key is open.  -> [batch or 1, head or 1, row]"""
        return self.open_keys.clamp_max(1)


def finest(device: torch.device) -> torch.dtype:
    """The most precise floating-point type of a device: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
