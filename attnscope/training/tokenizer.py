"""Learn a tokenizer from text, with the ``tokenizers`` library: WordPiece or byte-level BPE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from attnscope.errors import ModelError
from attnscope.network.tokenizer import CLS, SEP, SPECIAL, UNK

KINDS = ("wordpiece", "bpe")
_ALPHABET = 256  # letters beyond the most frequent ones become [UNK]
_QUOTES = [normalizers.Replace(Regex("[“”„]"), '"'), normalizers.Replace(Regex("[‘’]"), "'")]


def train_tokenizer(
    lines: Iterable[str], vocabulary: int = 8192, kind: str = "wordpiece", lowercase: bool = True
) -> Tokenizer:
    """Learn a tokenizer from lines of text; ``[PAD] [UNK] [CLS] [SEP] [MASK]`` are its ids 0 to 4.

    ``wordpiece`` splits at spaces and punctuation and knows no character that the lines lack;
    ``bpe`` works on bytes and can spell anything. Both read curly quotation marks as straight ones.
    ``lines`` is read twice, so a bare iterator will not do. The same lines give the same tokenizer.
    Raises ``ModelError`` for another kind, or a vocabulary too small to hold an alphabet.
    """
    if kind not in KINDS:
        raise ModelError(f"no tokenizer {kind!r}: there are {', '.join(KINDS)}")
    least = 300 if kind == "bpe" else 64
    if vocabulary < least:
        raise ModelError(f"a {kind} vocabulary needs {least} tokens or more, not {vocabulary}")
    tokenizer = (
        _byte_pairs(lines, vocabulary, lowercase)
        if kind == "bpe"
        else _word_pieces(lines, vocabulary, lowercase)
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
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
    """WordPiece; its ``##`` letters get ids first, since the trainer would number them by chance."""
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
    most = min(_ALPHABET, vocabulary // 4)
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
