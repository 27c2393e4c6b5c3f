"""Text files as one stream of token ids on disk, and the training rows that are cut from it.

Every row is a function of the seed and the step alone, so a run that resumes sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from attnscope.errors import InputError
from attnscope.network.tokenizer import CLS, MASK, SEP, SPECIAL
from attnscope.storage.whole import open_whole

Ids = npt.NDArray[np.int64]
IGNORED = -1  # the target of a position that is not to be guessed

LONGEST = 1 << 16
"""Characters of a line; what is longer counts as several, so that no line fills the memory."""

TOGETHER = 1 << 19
"""Characters that are tokenized together, for the same reason."""


@dataclass(frozen=True)
class Lines:
    """The lines of some files that are not blank, one at a time, as often as asked.

    ``part`` keeps all but the last twentieth of the lines (``"first"``), only those (``"last"``), or all.
    """

    files: Sequence[Path]
    part: str = "all"

    def __iter__(self) -> Iterator[str]:
        for path in self.files:
            border = 0 if self.part == "all" else round(sum(1 for _ in _read(path)) * 0.95)
            lines = _read(path)
            if self.part == "first":
                lines = islice(lines, border)
            elif self.part == "last":
                lines = islice(lines, border, None)
            yield from lines


def _read(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            while line := file.readline(LONGEST):
                if line.strip():
                    yield line.strip()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def split(files: Sequence[Path], held_out: Sequence[Path], seed: int) -> tuple[Lines, Lines]:
    """Training and held-out lines that share no document; a file is a document.

    Without ``held_out``, a twentieth of the files (at least one) is drawn by ``seed``; of a single file the
    last twentieth of its lines is held out. Raises ``InputError`` where a file is on both sides.
    """
    if held_out:
        both = {path.resolve() for path in files} & {path.resolve() for path in held_out}
        if both:
            raise InputError(f"{min(both)} is both trained on and held out: name it on one side only")
        return Lines(tuple(files)), Lines(tuple(held_out))
    if len(files) == 1:
        return Lines(tuple(files), "first"), Lines(tuple(files), "last")
    ordered = sorted(files)
    drawn = set(
        np.random.default_rng(seed).permutation(len(ordered))[: max(1, round(len(ordered) / 20))].tolist()
    )
    kept = tuple(path for n, path in enumerate(ordered) if n not in drawn)
    return Lines(kept), Lines(tuple(ordered[n] for n in sorted(drawn)))


def write_stream(lines: Lines, tokenizer: Tokenizer, path: Path) -> int:
    """Write the ids of all lines, a ``[SEP]`` after each, and return how many; memory stays small.

    The file appears whole or not at all.
    """
    separator = tokenizer.token_to_id(SEP)
    total = 0
    with open_whole(path) as file:
        for block in _blocks(lines):
            for encoding in tokenizer.encode_batch_fast(block, add_special_tokens=False):
                ids = np.asarray([*encoding.ids, separator], dtype="<u4")
                file.write(ids.tobytes())
                total += len(ids)
    return total


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines that are tokenized together: a thousand, or fewer of long ones."""
    block: list[str] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if len(block) == 1024 or size > TOGETHER:
            yield block
            block, size = [], 0
    yield block


def read_stream(path: Path) -> npt.NDArray[np.uint32]:
    """The ids of ``write_stream``, mapped from disk.  -> [token]"""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype="<u4")
    return np.memmap(path, dtype="<u4", mode="r")


@dataclass(frozen=True)
class Rows:
    """Rows of one length; a target is ``IGNORED`` where nothing is to be guessed.  Each [row, token]"""

    ids: Ids
    segments: Ids
    targets: Ids


@dataclass(frozen=True)
class Cutter:
    """Cuts rows out of a stream of ids: ``[CLS]``, a stretch of text, ``[SEP]``.

    ``length`` counts a row's tokens. ``guessed`` is the share of text tokens that become ``[MASK]`` and are
    to be guessed; ``causal`` asks for that share of all next tokens instead. In a ``short`` share of the
    steps each row is cut into four, so that short inputs are seen too. A ``repeats`` share of the rows is
    no text but random tokens that repeat themselves, from which attention learns to copy.
    """

    stream: npt.NDArray[np.uint32]
    tokenizer: Tokenizer
    length: int
    causal: bool = False
    guessed: float = 0.15
    short: float = 0.0
    repeats: float = 0.0
    seed: int = 0

    @property
    def stretch(self) -> int:
        """How many tokens of text a whole row holds."""
        return self.length - 2

    @property
    def count(self) -> int:
        """How many whole rows the stream gives in one pass."""
        return max(0, len(self.stream) // self.stretch - 1)

    def training(self, step: int, batch: int, causal: bool | None = None) -> Rows:
        """The rows of a training step; each pass over the stream goes in another order, cut elsewhere.

        ``causal`` asks for each next token in this step, whatever ``self.causal`` says.
        """
        if self.count < 1:
            raise InputError(f"{len(self.stream)} tokens of text are too few for rows of {self.length}")
        numbers = np.arange(step * batch, (step + 1) * batch)
        texts = np.empty((batch, self.stretch), dtype=np.int64)
        for epoch in np.unique(numbers // self.count):
            order = np.random.default_rng([self.seed, 1, int(epoch)])
            shift = int(order.integers(self.stretch))
            starts = order.permutation(self.count) * self.stretch + shift
            here = np.flatnonzero(numbers // self.count == epoch)
            for row in here:
                start = starts[numbers[row] % self.count]
                texts[row] = self.stream[start : start + self.stretch]
        chance = np.random.default_rng([self.seed, 2, step])
        if chance.random() < self.short:
            piece = self.length // 4 - 2
            texts = texts[:, : 4 * piece].reshape(4 * batch, piece)
        return self._rows(texts, chance, self.causal if causal is None else causal)

    def evaluation(self, start: int, stop: int) -> Rows:
        """Whole rows ``start`` to ``stop`` of the stream, in order; the masks depend on the seed alone."""
        texts = np.stack([self.stream[n * self.stretch : (n + 1) * self.stretch] for n in range(start, stop)])
        return self._rows(texts.astype(np.int64), np.random.default_rng([self.seed, 3, start]), self.causal)

    def _rows(self, texts: Ids, chance: np.random.Generator, causal: bool) -> Rows:
        rows, stretch = texts.shape
        first = np.zeros(rows, dtype=np.int64)  # where guessing starts to be possible
        for row in np.flatnonzero(chance.random(rows) < self.repeats):
            period = int(chance.integers(max(2, stretch // 8), max(3, stretch // 2 + 1)))
            unit = chance.integers(len(SPECIAL), self.tokenizer.get_vocab_size(), period)
            texts[row] = np.resize(unit, stretch)
            first[row] = period if causal else 0
        ids = np.empty((rows, stretch + 2), dtype=np.int64)
        ids[:, 0] = self.tokenizer.token_to_id(CLS)
        ids[:, 1:-1] = texts
        ids[:, -1] = separator = self.tokenizer.token_to_id(SEP)
        segments = self._segments(texts == separator, chance)
        targets = np.full_like(ids, IGNORED)
        if causal:
            asked = np.arange(stretch + 1) >= first[:, None]
            if self.guessed < 1:
                asked &= chance.random(asked.shape) < self.guessed
            targets[:, :-1] = np.where(asked, ids[:, 1:], IGNORED)
        else:
            text = ids >= len(SPECIAL)
            hidden = text & (chance.random(ids.shape) < self.guessed)
            targets[hidden] = ids[hidden]
            ids[hidden] = self.tokenizer.token_to_id(MASK)
        return Rows(ids, segments, targets)

    def _segments(self, ends: npt.NDArray[np.bool_], chance: np.random.Generator) -> Ids:
        """Half of the rows with a line's end become a pair there: 0 up to it, 1 after.  -> [row, token]"""
        segments = np.zeros((len(ends), ends.shape[1] + 2), dtype=np.int64)
        pair = chance.random(len(ends)) < 0.5
        which = (chance.random(len(ends)) * ends.sum(1)).astype(np.int64)
        after = np.cumsum(ends, axis=1) - ends > which[:, None]  # ends before this token
        segments[:, 1:-1] = after & pair[:, None]
        segments[:, -1] = segments[:, -2] if ends.shape[1] else 0
        return segments
