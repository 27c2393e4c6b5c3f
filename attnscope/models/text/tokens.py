"""From a tokenizer's output to ``Token``s as a person reads them; and tokens that a model generates."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from attnscope.attention import Token
from attnscope.axes import find_senses
from attnscope.errors import InputError, ModelError
from attnscope.lazy import torch
from attnscope.progress import report
from attnscope.text import clean, visible

if TYPE_CHECKING:
    from tokenizers import Encoding
    from torch import Tensor


class TextTokens(NamedTuple):
    """A text, or a pair, as tokens; notes about them; and the tokenizer's other outputs, if any."""

    tokens: tuple[Token, ...]
    notes: tuple[str, ...] = ()
    fields: Mapping[str, list[int]] = {}


BEGINS = ("▁", "Ġ")  # prefixes in vocabulary entries of tokens that begin a word


def tokens_of_encoding(encoding: Encoding, texts: Sequence[str]) -> tuple[Token, ...]:
    """The tokens of one encoded text, or of a pair of texts, with the text that each stands for.

    A token's text is the slice of the input that it covers, so that capitals, accents and emoji appear as
    written. Words are numbered across both texts of a pair; a special token belongs to the text before
    it. Raises ``ModelError`` if the counts of ids and tokens differ.
    """
    segment = 0
    tokens = []
    ends = [0] * len(texts)  # of what is already spelled
    columns = encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask
    if len({len(column) for column in columns}) > 1:
        raise ModelError("the tokenizer is damaged: a special token of it has more or fewer ids than names")
    sequences = encoding.sequence_ids  # each access builds a new list
    words = _words(encoding, sequences, texts)
    for id_, spelling, span, is_special, sequence, word in zip(*columns, sequences, words, strict=True):
        segment = segment if sequence is None else sequence
        if sequence is None:
            tokens.append(Token(spelling, id_, True, segment, word))
            continue
        text = _piece(spelling, texts[sequence][slice(*span)])
        adds = texts[sequence][ends[sequence] : span[1]] if ends[sequence] else None
        if not text.isspace() or text == texts[sequence][slice(*span)]:  # else its mark covers what follows
            ends[sequence] = max(ends[sequence], span[1])
        elif adds is not None:
            adds = ""
        tokens.append(Token(text, id_, bool(is_special), segment, word, adds=adds))
    return tuple(tokens)


def tokens_of_ids(tokenizer: Any, ids: Sequence[int], special_ids: Collection[int]) -> tuple[Token, ...]:
    """Tokens from ids alone, for tokenizers without offsets: the vocabulary entries, made readable."""
    return tokens_of_spellings(ids, tokenizer.convert_ids_to_tokens(list(ids)), special_ids)


def tokens_of_spellings(
    ids: Sequence[int], spellings: Sequence[str | None], special_ids: Collection[int]
) -> tuple[Token, ...]:
    """Tokens from ids and their vocabulary entries; one without an entry reads ``id 128,005``.

    A word begins where the spelling says so (``▁``, ``Ġ``, or no ``##``), and at every special token.
    """
    has_marks = any(spelling.startswith(BEGINS) for spelling in spellings if spelling is not None)
    tokens: list[Token] = []
    word, inside = -1, False
    for id_, spelling in zip(ids, spellings, strict=True):
        if spelling is None:  # models may have more rows than their tokenizers have entries
            word, inside = word + 1, False
            tokens.append(Token(f"id {id_:,}", id_, word=word))
            continue
        if id_ in special_ids:
            tokens.append(Token(spelling, id_, special=True))
            inside = False
            continue
        begins = spelling.startswith(BEGINS) if has_marks else not spelling.startswith("##")
        word, inside = word + (begins or not inside), True
        text = without_marks(spelling)
        adds = " " * begins + text if has_marks or not begins else None
        tokens.append(Token(text, id_, word=word, adds=adds))
    return tuple(tokens)


UNKNOWN = "unknown to the vocabulary:"  # the note on unknown tokens
UNKNOWN_END = re.compile(r"(?<=\S) (\[\w+\]|<\w+>)$")
"""The end of an unknown token's text: ``[UNK]`` or ``<unk>``, after the text's own letters."""


def mark_unknown(
    tokens: tuple[Token, ...], unknown: int | None, spelling: str | None
) -> tuple[tuple[Token, ...], tuple[str, ...]]:
    """Tokens with ``[UNK]``, as the vocabulary spells it, after the text they lack, and how many.

    A text may contain that token literally; then it is not unknown.
    """
    result = tuple(
        replace(token, text=f"{token.text} {spelling}")
        if token.id == unknown and not token.special and token.text != spelling
        else token
        for token in tokens
    )
    count = sum(one is not other for one, other in zip(result, tokens, strict=True))
    return result, (say_unknown(count, len(tokens), spelling),) if count else ()


def say_unknown(count: int, total: int, spelling: str | None) -> str:
    """How many tokens are not in the vocabulary, in words."""
    return f"{count:,} of {total:,} tokens {'is' if count == 1 else 'are'} {UNKNOWN} {spelling}"


def read_unknown(note: str) -> tuple[int, str] | None:
    """How many tokens ``say_unknown`` named, and their spelling; ``None`` for another note."""
    match = re.fullmatch(rf"([\d,]+) of [\d,]+ tokens (?:is|are) {UNKNOWN} (.*)", note)
    return (int(match[1].replace(",", "")), match[2]) if match else None


@lru_cache(maxsize=1 << 16)  # the same entries occur again and again
def without_marks(spelling: str) -> str:
    """A vocabulary entry without its marks for word starts and continuations."""
    text = spelling.removeprefix("##").removesuffix("</w>")
    for mark in BEGINS:
        text = text.replace(mark, " ")
    return text.strip() or text


@lru_cache(maxsize=1 << 16)
def _piece(spelling: str, covered: str) -> str:
    """The displayed text of a token with that vocabulary entry, which covers that part of the text."""
    text = without_marks(spelling)
    if text.isspace() and not covered.isspace():
        return text  # a word mark that the tokenizer added covers the next character
    return covered.strip() or covered or text


def _words(encoding: Encoding, sequences: Sequence[int | None], texts: Sequence[str]) -> list[int | None]:
    """The running number of each token's word, ``None`` for special tokens.

    If a tokenizer does not split into words (all pieces carry one word id), the spaces of the text decide.
    """
    word_ids, offsets = encoding.word_ids, encoding.offsets
    pairs = set(zip(sequences, word_ids, strict=True))
    whole = [sum(sequence == number for sequence, _ in pairs) < 2 for number in range(len(texts))]
    starts = [
        [match.start() for match in re.finditer(r"\S+", text)] if spaces else []
        for text, spaces in zip(texts, whole, strict=True)
    ]
    numbers: list[int | None] = []
    running, last = -1, None
    for index, sequence in enumerate(sequences):
        if sequence is None:
            numbers.append(None)
            last = None
            continue
        if whole[sequence]:
            start, stop = offsets[index]
            covered = texts[sequence][start:stop]
            word = bisect_right(starts[sequence], start + len(covered) - len(covered.lstrip()))
        else:
            word = word_ids[index] or 0
        running += (sequence, word) != last
        last = (sequence, word)
        numbers.append(running)
    return numbers


BROKEN = "\N{REPLACEMENT CHARACTER}"  # what incomplete characters decode to


@dataclass(frozen=True)
class Vocabulary:
    """How token ids are spelled and read: a tokenizer's own functions."""

    spell: Callable[[list[int]], list[str | None]]
    decode: Callable[[list[int]], str]
    special: Collection[int]

    def extend(self, tokens: Sequence[Token], ids: Sequence[int]) -> tuple[Token, ...]:
        """``tokens`` followed by those of ``ids``; the first of these may continue the last word."""
        before = [token.id for token in tokens]
        every = [*before, *ids]
        spellings = tokens_of_spellings(every, self.spell(every), self.special)
        shift = _words_vocabulary(tokens) - _words_vocabulary(spellings[: len(before)])
        segment = tokens[-1].segment if tokens else 0
        spellings = spellings[len(before) :]
        words = [None if token.word is None else token.word + shift for token in spellings]
        return *tokens, *(
            replace(token, text=text, segment=segment, word=word, adds=_respell(token, text, first))
            for token, (text, first), word in zip(spellings, self._texts(spellings), words, strict=True)
        )

    def _texts(self, tokens: Sequence[Token]) -> list[tuple[str, bool]]:
        """The text of each token, and whether it begins there: parts of a character are spelled like it."""
        texts: list[tuple[str, bool]] = []
        waiting: list[int] = []
        for token in tokens:
            broken = [(BROKEN, True)] * len(waiting)
            if token.special:
                texts += [*broken, (token.text, True)]
                waiting = []
                continue
            alone, together = self.decode([token.id]), self.decode([*waiting, token.id])
            if BROKEN in together and BROKEN in alone:
                waiting.append(token.id)
            elif waiting and BROKEN not in together:
                whole = together.strip() or together
                texts += [(whole, True), *[(whole, False)] * len(waiting)]
                waiting = []
            else:
                texts += [*broken, (without_marks(alone) or token.text, True)]
                waiting = []
        return texts + [(BROKEN, True)] * len(waiting)


def _respell(token: Token, text: str, first: bool) -> str | None:
    """What a token adds whose text is spelled anew; a space before it stays."""
    if token.adds is None or token.special:
        return None
    if not first:
        return ""  # the first part of the character has it
    return f" {text}" if token.adds.startswith(" ") and not text.startswith(" ") else text


NUMBERS = Vocabulary(lambda ids: [None] * len(ids), lambda ids: " ".join(f"id {each}" for each in ids), ())
"""The vocabulary of a model with an unknown tokenizer."""


def repeat_random(frame: TextTokens, vocabulary: Vocabulary, size: int, count: int, seed: int) -> TextTokens:
    """``count`` different random tokens, twice, in place of the text of ``frame``.

    They are drawn from those of the first ``size`` entries that are letters or digits. Equal tokens
    always have equal predecessors, so that induction can be measured on the second half. Raises
    ``InputError`` if the vocabulary is too small.
    """
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    entries = zip(order, vocabulary.spell(order), strict=True)
    plain = ((id_, without_marks(text)) for id_, text in entries if text and id_ not in vocabulary.special)
    legible = [id_ for id_, text in plain if text.isascii() and text.isalnum()]
    if count > len(legible):
        raise InputError(f"the vocabulary has {len(legible):,} tokens to draw from: ask for no more")
    special = [token.special for token in frame.tokens]
    start = special.index(False)
    stop = len(special) - special[::-1].index(False)
    tokens = (*vocabulary.extend(frame.tokens[:start], legible[:count] * 2), *frame.tokens[stop:])
    fields = {
        name: [*field[:start], *field[start : start + 1] * (2 * count), *field[stop:]]
        for name, field in frame.fields.items()
    } | {"input_ids": [token.id for token in tokens]}
    note = f"{count:,} random tokens twice (seed {seed}): induction is measured on the second half"
    return TextTokens(tokens, (note,), fields)


def _words_vocabulary(tokens: Sequence[Token]) -> int:
    """How many words the tokens are numbered with."""
    return max((token.word for token in tokens if token.word is not None), default=-1) + 1


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
    return tokens[:stop], (f"{tokens[stop].text} is left out at the end, so that the text can continue",)


def generate_ids(
    scores: Callable[[list[int]], Tensor], count: int, sampling: Sampling, ends: Collection[int]
) -> list[int]:
    """Up to ``count`` tokens, each chosen from the scores given those before it; one of ``ends`` stops."""
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
        report("token", len(ids), count)
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
    """The text of tokens as it was read, or with words apart; for a picture or a sound, its name alone."""
    text = ""
    senses = find_senses(tokens)
    for before, token, earlier, sense in zip((None, *tokens), tokens, (None, *senses), senses, strict=False):
        if sense is not None:
            text += f"{' ' * bool(text)}[{sense}]" if sense != earlier else ""
            continue
        if not text and token.text.isspace():
            continue  # it marks where the first word begins
        if text and token.adds is not None:
            text += token.adds
            continue
        apart = before is not None and (token.word is None or token.word != before.word)
        apart = apart and token.text not in CLOSING and not (_is_wide(text[-1:]) and _is_wide(token.text[:1]))
        text += " " * apart + visible(token.text)
    return clean(text)


def _is_wide(letter: str) -> bool:
    """Whether a letter's script has no spaces between words."""
    return bool(letter) and unicodedata.east_asian_width(letter) in "WF"
