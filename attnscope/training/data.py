"""Training data: a tokenizer by the ``tokenizers`` library (WordPiece or byte-level BPE), and rows of ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from attnscope.errors import InputError, ModelError
from attnscope.network import CLS, MASK, SEP, SPECIAL, UNK
from attnscope.storage.files import open_whole

TokenizerKind: TypeAlias = Literal["wordpiece", "bpe"]
_MOST_LETTERS = 256  # letters beyond the most frequent ones become [UNK]
_QUOTES = [normalizers.Replace(Regex("[“”„]"), '"'), normalizers.Replace(Regex("[‘’]"), "'")]


def train_tokenizer(
    lines: Iterable[str], vocabulary: int = 8192, kind: TokenizerKind = "wordpiece", lowercase: bool = True
) -> Tokenizer:
    """Learn a tokenizer from lines of text; ``[PAD] [UNK] [CLS] [SEP] [MASK]`` are its ids 0 to 4.

    ``wordpiece`` splits at spaces and punctuation and knows only characters of the lines; ``bpe`` works
    on bytes and can spell anything. Both turn curly quotation marks into straight ones. ``lines`` is read
    twice, so it cannot be an iterator.
    """
    least = 300 if kind == "bpe" else 64
    if vocabulary < least:
        raise ModelError(f"a {kind} vocabulary needs {least} tokens or more, not {vocabulary}")
    learn = _byte_pairs if kind == "bpe" else _word_pieces
    tokenizer = learn(lines, vocabulary, lowercase)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, SPECIAL.index(token)) for token in (CLS, SEP)],
    )
    return tokenizer


def _byte_pairs(lines: Iterable[str], vocabulary: int, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    folded = [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
    tokenizer.normalizer = normalizers.Sequence([*_QUOTES, *folded])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def _word_pieces(lines: Iterable[str], vocabulary: int, lowercase: bool) -> Tokenizer:
    """WordPiece; its ``##`` letters get the first ids, since the trainer would number them arbitrarily."""
    normalizer = normalizers.Sequence(
        [*_QUOTES, normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)]
    )
    letters: Counter[str] = Counter()
    for line in lines:
        letters.update(line)
    folded: Counter[str] = Counter()
    for letter, count in letters.items():
        for piece in normalizer.normalize_str(letter).strip():
            folded[piece] += count
    most = min(_MOST_LETTERS, vocabulary // 4)
    alphabet = sorted(sorted(folded, key=lambda letter: (-folded[letter], letter))[:most])
    inside = ["##" + letter for letter in alphabet if letter.isalnum()]

    def pieces(model: models.WordPiece) -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(cleanup=True)
        return tokenizer

    draft = pieces(models.WordPiece(unk_token=UNK))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=[*SPECIAL, *inside],
        show_progress=False,
    )
    draft.train_from_iterator(lines, trainer)
    return pieces(models.WordPiece(vocab=draft.get_vocab(), unk_token=UNK))


Ids = npt.NDArray[np.int64]
IGNORED = -1  # the target of a position without a prediction

MOST_LINE_CHARACTERS = 1 << 16  # characters per line; longer lines are split to bound memory
BATCH_CHARACTERS = 1 << 19  # characters that are tokenized together, for the same reason


@dataclass(frozen=True)
class Lines:
    """Non-blank lines of files: all, the ``"first"`` 19 of 20 of each, or the ``"last"`` twentieth."""

    files: Sequence[Path]
    part: str = "all"

    def __iter__(self) -> Iterator[str]:
        for path in self.files:
            border = None if self.part == "all" else round(sum(1 for _ in _read(path)) * 0.95)
            yield from islice(_read(path), *((border, None) if self.part == "last" else (border,)))


def _read(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            while line := file.readline(MOST_LINE_CHARACTERS):
                if line.strip():
                    yield line.strip()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def split_held_out(files: Sequence[Path], held_out: Sequence[Path], seed: int) -> tuple[Lines, Lines]:
    """Training and held-out lines that share no file: a twentieth is drawn by ``seed`` if none is named.

    Of a single file, the last twentieth of its lines is held out.
    """
    if held_out:
        both = {path.resolve() for path in files} & {path.resolve() for path in held_out}
        if both:
            raise InputError(f"{min(both)} is both trained on and held out: name it on one side only")
        return Lines(tuple(files)), Lines(tuple(held_out))
    if len(files) == 1:
        return Lines(tuple(files), "first"), Lines(tuple(files), "last")
    ordered = np.array(sorted(files))
    drawn = np.random.default_rng(seed).permutation(len(ordered))[: max(1, round(len(ordered) / 20))]
    is_drawn = np.isin(np.arange(len(ordered)), drawn)
    return Lines(tuple(ordered[~is_drawn])), Lines(tuple(ordered[is_drawn]))


def write_stream(lines: Lines, tokenizer: Tokenizer, path: Path) -> int:
    """Write the ids of all lines, a ``[SEP]`` after each, as one whole file; returns how many."""
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
    """Lines to tokenize together: a thousand, or fewer long ones."""
    block, size = list[str](), 0
    for line in lines:
        block.append(line)
        size += len(line)
        if len(block) == 1024 or size > BATCH_CHARACTERS:
            yield block
            block, size = [], 0
    yield block


def read_stream(path: Path) -> npt.NDArray[np.uint32]:
    """The ids of ``write_stream``, mapped from disk.  -> [token]"""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype="<u4")
    return np.memmap(path, dtype="<u4", mode="r")


@dataclass(frozen=True)
class TokenRows:
    """Rows of one length; a target is ``IGNORED`` where nothing is predicted.  Each [row, token]"""

    ids: Ids
    segments: Ids
    targets: Ids


@dataclass(frozen=True)
class Cutter:
    """Cuts rows out of a stream of ids: ``[CLS]``, a stretch of text, ``[SEP]``.

    ``length`` counts a row's tokens. ``guessed`` is the share of text tokens that become ``[MASK]`` and
    are predicted; ``causal`` predicts that share of all next tokens instead. In a ``short`` share of the
    steps each row is cut into four, to train on short inputs too. A ``repeats`` share of the rows holds
    random tokens that repeat, from which attention learns to copy.
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
        """How many tokens of text a full row holds."""
        return self.length - 2

    @property
    def count(self) -> int:
        """How many full rows the stream gives in one pass."""
        return max(0, len(self.stream) // self.stretch - 1)

    def training(self, step: int, batch: int, causal: bool | None = None) -> TokenRows:
        """The rows of a step; each pass has another order and other cuts. ``causal`` overrules the field."""
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

    def evaluation(self, start: int, stop: int) -> TokenRows:
        """Full rows ``start`` to ``stop`` of the stream, in order; the masks depend on the seed alone."""
        texts = np.stack([self.stream[n * self.stretch : (n + 1) * self.stretch] for n in range(start, stop)])
        return self._rows(texts.astype(np.int64), np.random.default_rng([self.seed, 3, start]), self.causal)

    def _rows(self, texts: Ids, chance: np.random.Generator, causal: bool) -> TokenRows:
        rows, stretch = texts.shape
        first = np.zeros(rows, dtype=np.int64)  # from here on predictions are possible
        for row in np.flatnonzero(chance.random(rows) < self.repeats):
            period = int(chance.integers(max(2, stretch // 8), max(3, stretch // 2 + 1)))
            unit = chance.integers(len(SPECIAL), self.tokenizer.get_vocab_size(), period)
            texts[row] = np.resize(unit, stretch)
            first[row] = period if causal else 0
        ids = np.empty((rows, stretch + 2), dtype=np.int64)
        ids[:, 0] = self.tokenizer.token_to_id(CLS)
        ids[:, 1:-1] = texts
        ids[:, -1] = self.tokenizer.token_to_id(SEP)
        # half of the rows with a line break become a pair there: segment 0 up to it, 1 after
        segments = np.zeros_like(ids)
        ends = np.equal(texts, ids[:, -1:])
        pair = np.less(chance.random((rows, 1)), 0.5)
        which = (chance.random(rows) * ends.sum(1)).astype(np.int64)
        before = np.cumsum(ends, axis=1) - ends  # how many ends stand before a token
        segments[:, 1:-1] = np.greater(before, which[:, None]) & pair
        segments[:, -1] = segments[:, -2] if stretch else 0
        targets = np.full_like(ids, IGNORED)
        if causal:
            predicted = np.arange(stretch + 1) >= first[:, None]
            if self.guessed < 1:
                predicted &= chance.random(predicted.shape) < self.guessed
            targets[:, :-1] = np.where(predicted, ids[:, 1:], IGNORED)
        else:
            text = ids >= len(SPECIAL)
            hidden = text & (chance.random(ids.shape) < self.guessed)
            targets[hidden] = ids[hidden]
            ids[hidden] = self.tokenizer.token_to_id(MASK)
        return TokenRows(ids, segments, targets)
