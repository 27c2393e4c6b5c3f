"""What is said in a sound: tokens with their times, and the words that they are pieces of."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Attention, Head, Token
from attnscope.axes import Array
from attnscope.comparison import first_columns, most_on_way
from attnscope.errors import InputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.sounds import SpeechModel
from attnscope.models.inputs import Heard, Letters, Part
from attnscope.models.text.tokens import BROKEN, Vocabulary
from attnscope.storage.sound import read_sound
from attnscope.text import visible

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


@dataclass(frozen=True, eq=False)
class Across:
    """The cross attention of some heads, from the token before the first that is said, to what is heard."""

    heads: tuple[Head, ...]
    weights: Tensor  # [head, row, frame], float32
    layers: int
    first: int  # row
    frames: int  # with padding


def require_speech(model: Model, prepared: ModelInput) -> SpeechModel:
    """The model that hears, inside of one that is weighed too. Raises ``InputError``."""
    inner = getattr(model, "model", model)
    if not isinstance(inner, SpeechModel) or "cross" not in prepared.axes or prepared.heard is None:
        raise InputError(
            f"{model.name} aligns no words by its heads: that takes a model that hears and writes, "
            "such as Whisper"
        )
    return inner


def said_in(prepared: ModelInput) -> tuple[Token, ...]:
    """What the decoder read."""
    axis = prepared.axes["cross"][0]
    return () if isinstance(axis, range) else axis


def says_something(prepared: ModelInput) -> bool:
    """Whether there is more in what the decoder read than special tokens."""
    return not all(token.special for token in said_in(prepared))


def look_across(model: Model, prepared: ModelInput, heads: Sequence[Head] | None) -> Across:
    """Run the model; of ``heads``, of those in the upper half of the layers if none are named, or of all."""
    said, keys = said_in(prepared), prepared.axes["cross"][1]
    heads = None if heads is None else [Head(head.layer, head.head) for head in heads]
    count = next((number for number, token in enumerate(said) if not token.special), len(said))
    if count == len(said):
        raise InputError("nothing is said: give it as the text, or leave that out for the model to write it")
    assert prepared.heard is not None
    rows = _CrossRows(count - 1, prepared.heard.frames, heads)
    record = model.run(prepared, [rows])
    layers = 1 + max(site.site.layer for site in record.sites if site.site.kind == "cross")
    found = rows.found
    for head in heads or ():
        if head not in found:
            raise SelectionError(f"no cross-attention head {head.name}: this model has layers 0-{layers - 1}")
    upper = heads is not None and not heads
    chosen = tuple(heads or (head for head in found if not upper or head.layer >= layers // 2))
    return Across(chosen, torch.stack([found[head] for head in chosen]), layers, count - 1, len(keys))


@dataclass(eq=False)
class _CrossRows:
    """Keeps the rows from ``first`` on of the cross-attention heads in ``wanted``, or of all."""

    first: int
    frames: int
    wanted: Sequence[Head] | None
    found: dict[Head, Tensor] = field(default_factory=dict)  # each [row, frame]

    def observe(self, attention: Attention) -> None:
        """Compute and keep them."""
        layer = attention.site.layer
        if attention.site.kind != "cross":
            return
        names = {number: Head(layer, number) for number in range(attention.heads)}
        numbers = [number for number, head in names.items() if not self.wanted or head in self.wanted]
        if not numbers:
            return
        rows = attention.rows(self.first, len(attention.queries), numbers)  # [text, head, row, key]
        for number, kept in zip(numbers, rows[0, :, :, : self.frames], strict=True):
            self.found[names[number]] = kept.detach().float().cpu().clone()


WIDTH = 7
"""Frames that a median is taken over, where the model does not say how many."""

WIDEST = 99


@dataclass(frozen=True, eq=False)
class Alignment:
    """When each token and each word is said; ``way`` says by which heads.

    The sound is heard from the second ``begin`` of its file to the second ``seconds``.
    """

    tokens: tuple[SaidToken, ...]
    words: tuple[Word, ...]
    heads: tuple[Head, ...]
    way: str
    title: str
    begin: float
    seconds: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class MonotoneHead:
    """How much of a head's attention lies on the best way that only goes forward through the sound.

    ``share`` is that of each token, on average, ``baseline`` the same of even attention.
    """

    head: Head
    share: float
    baseline: float


def align_words(model: Model, prepared: ModelInput, heads: Sequence[Head] = ()) -> Alignment:
    """When each word is said, by ``heads``, or those that the model names, or half of all heads.

    Raises ``InputError`` where nothing is said, ``SelectionError`` for a head that does not exist.
    """
    speech = require_speech(model, prepared)
    way = "chosen"
    if not heads:
        heads, way = speech.alignment_heads, "the alignment heads that the model names"
    result = look_across(model, prepared, heads)
    if not heads:
        half = result.layers // 2
        way = f"all heads of the layers {half}-{result.layers - 1}, as the model names no alignment heads"
    assert prepared.heard is not None
    seconds = prepared.heard.seconds
    frames = token_frames(result.weights, getattr(model.module.config, "median_filter_width", WIDTH))
    times = [round(prepared.heard.begin + int(frame) * seconds, 6) for frame in frames]
    said = said_in(prepared)[result.first + 1 :]
    tokens = tuple(map(SaidToken, said, times, times[1:]))  # a row looks for the token after its own
    words = join_words(tokens, speech.reader.vocabulary)
    notes = (*model.notes, *prepared.notes)
    end = prepared.heard.begin + prepared.heard.frames * seconds
    return Alignment(tokens, words, result.heads, way, model.title, prepared.heard.begin, end, notes)


def rank_monotone(model: Model, prepared: ModelInput) -> tuple[MonotoneHead, ...]:
    """All heads by how much of their attention goes forward through the sound, the most first."""
    require_speech(model, prepared)
    result = look_across(model, prepared, None)
    rows, frames = result.weights.shape[1:]
    shares = most_on_way(result.weights.numpy()) / rows
    baseline = (rows + frames - 1) / (rows * result.frames)
    found = zip(result.heads, map(float, shares), strict=True)
    ranked = sorted(found, key=lambda each: -each[1])
    return tuple(MonotoneHead(head, share, baseline) for head, share in ranked)


def token_frames(weights: Tensor, width: object) -> Array:
    """The frame in which each row's search begins.  [head, row, frame] -> [row]

    Each head's weights are standardized over the rows, smoothed by a median over ``width`` frames, averaged,
    and followed by dynamic time warping: as transformers does it for Whisper.
    """
    return first_columns(-torch.from_numpy(smooth_rows(weights, width)).mean(0).double().numpy())


def smooth_rows(weights: Tensor, width: object) -> Array:
    """What stands out of each head's rows, smoothed.  [head, row, frame] -> [head, row, frame]"""
    from scipy.ndimage import median_filter

    spread = torch.std(weights, dim=-2, keepdim=True, unbiased=False)
    clear = (weights - torch.mean(weights, dim=-2, keepdim=True)) / spread
    smooth: Array = torch.where(spread > 0, clear, 0).numpy()  # 0 where no row stands out
    width = width if isinstance(width, int) and 0 < width <= WIDEST and width % 2 else WIDTH
    if smooth.shape[-1] > width // 2:
        smooth = median_filter(smooth, size=(1, 1, width), mode="mirror")
    return smooth


def reads_letters(prepared: ModelInput) -> bool:
    """Whether a CTC head read the sound."""
    return prepared.heard is not None and prepared.heard.letters is not None


def align_letters(model: Model, prepared: ModelInput) -> Alignment:
    """When each word is said that the CTC head reads: from its first letter's first frame to its last's end.

    Repeated letters are one, and blanks none, as transformers decodes it. Raises ``InputError`` where the
    head reads nothing.
    """
    heard = prepared.heard
    assert heard is not None
    assert heard.letters is not None
    tokens = tuple(_read(heard, heard.letters))
    words = tuple(_join(tokens, heard.letters))
    if not words:
        raise InputError(f"nothing is said, as {model.name} hears it: its CTC head reads no letter")
    end = heard.begin + heard.frames * heard.seconds
    way = "the letters of the CTC head, frame by frame"
    notes = (*model.notes, *prepared.notes)
    return Alignment(tokens, words, (), way, model.title, heard.begin, end, notes)


def _read(heard: Heard, letters: Letters) -> Iterator[SaidToken]:
    """The letters that are heard, with the frames over which each is repeated as its time."""
    ids = letters.ids[: round(heard.frames * heard.seconds / letters.seconds)].tolist()
    at = 0
    for id_, frames in groupby(ids):
        begin, at = at, at + len(list(frames))
        if id_ != letters.blank:
            times = (round(heard.begin + edge * letters.seconds, 6) for edge in (begin, at))
            yield SaidToken(Token(letters.read[id_], id_), *times)


def _join(tokens: tuple[SaidToken, ...], letters: Letters) -> Iterator[Word]:
    """The words between boundaries, or from one token that begins a word to the next."""
    word: Word | None = None
    for said in tokens:
        boundary = said.token.id == letters.boundary
        begins = said.token.id in letters.begin or is_wide(said.token.text)
        if word is not None and (boundary or begins):
            yield word
            word = None
        if not boundary:
            first = word or Word("", said.begin, said.end)
            word = Word(first.text + said.token.text, first.begin, said.end)
    if word is not None:
        yield word


def is_long(model: Model, path: Path, part: Part) -> bool:
    """Whether a part of a sound is longer than the model hears at once."""
    once = model.at_once if isinstance(model, SpeechModel) else math.inf
    return once < math.inf and read_sound(path, part.begin, part.end).seconds > once


def align_windows(
    model: Model,
    path: Path,
    write: Callable[[ModelInput], ModelInput],
    heads: Sequence[Head] = (),
    part: Part | None = None,
) -> Alignment:
    """When each word is said that the model writes, ``write``, one window of the sound after the other.

    The last word of a window may be cut, so that the next window begins with it, as far as that brings the
    sound on by half a window; times go on from the one before. Raises ``InputError`` where nothing is said.
    """
    assert isinstance(model, SpeechModel)
    asked = part or Part()
    whole = read_sound(path, asked.begin, asked.end)
    end = asked.begin + whole.seconds
    heard = list(_windows(model, path, write, heads, asked.begin, end))
    if not heard:
        raise InputError(f"nothing is said in {path}, as {model.name} hears it")
    notes = tuple(dict.fromkeys(note for each in heard for note in each.notes))
    written = sum(len(each.tokens) for each in heard)
    notes += (
        f"the model wrote {written:,} tokens",
        f"heard {model.at_once:g} seconds at once, in {len(heard)} windows: each begins with the last word "
        "of the one before it",
    )
    return replace(
        heard[0],
        tokens=tuple(said for each in heard for said in each.tokens),
        words=tuple(word for each in heard for word in each.words),
        seconds=end,
        notes=notes,
    )


def _windows(
    model: SpeechModel,
    path: Path,
    write: Callable[[ModelInput], ModelInput],
    heads: Sequence[Head],
    begin: float,
    end: float,
) -> Iterator[Alignment]:
    """The alignment of each window in which something is said, without the word that the next begins with."""
    while begin < end:
        stop = min(begin + model.at_once, end)
        heard = model.prepare_audio(path, part=Part(begin, stop))
        prepared = write(heard)
        following = stop
        if says_something(prepared):
            result = align_words(model, prepared, heads)
            result = replace(result, notes=(*model.notes, *heard.notes))  # the words say what was written
            last = result.words[-1].begin if result.words else stop
            if stop < end and last > begin + model.at_once / 2:
                following = last
                result = replace(
                    result,
                    words=tuple(word for word in result.words if word.begin < last),
                    tokens=tuple(said for said in result.tokens if said.begin < last),
                )
            yield result
        begin = following


def alignment_numbers(result: Alignment) -> dict[str, Any]:
    """An alignment as plain data; times are seconds."""
    return {
        "notes": list(result.notes),
        "heads": [head.name for head in result.heads],
        "way": result.way,
        "begin": result.begin,
        "seconds": result.seconds,
        "words": [{"text": word.text, "begin": word.begin, "end": word.end} for word in result.words],
        "tokens": [
            {"text": said.token.text, "id": said.token.id, "begin": said.begin, "end": said.end}
            for said in result.tokens
        ],
    }


def rank_numbers(ranked: Sequence[MonotoneHead]) -> dict[str, Any]:
    """Heads by how much of their attention goes forward, as plain data."""
    return {
        "ranked": [
            {"head": each.head.name, "forward": each.share, "baseline": each.baseline} for each in ranked
        ]
    }


def write_srt(result: Alignment) -> str:
    """Subtitles of one word each."""
    blocks = (
        f"{number}\n{_clock(word.begin)} --> {_clock(word.end)}\n{visible(word.text)}\n"
        for number, word in enumerate(result.words, 1)
    )
    return "\n".join(blocks)


def write_vtt(result: Alignment) -> str:
    """The same for pages, in which a text may not look like markup."""
    blocks = (
        f"{_clock(word.begin, '.')} --> {_clock(word.end, '.')}\n{escape(visible(word.text), quote=False)}\n"
        for word in result.words
    )
    return "\n".join(("WEBVTT\n", *blocks))


def _clock(seconds: float, point: str = ",") -> str:
    """``01:02:03,450``"""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def write_textgrid(result: Alignment) -> str:
    """A TextGrid of one tier, whose intervals fill the whole sound, and the last frame if that is longer."""
    end = max([result.seconds, *(word.end for word in result.words)])
    parts = list(_intervals(result.words, end))
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {end:.10g}",
        "tiers? <exists>",
        "size = 1",
        "item []:",
        "    item [1]:",
        '        class = "IntervalTier"',
        '        name = "words"',
        "        xmin = 0",
        f"        xmax = {end:.10g}",
        f"        intervals: size = {len(parts)}",
    ]
    for number, part in enumerate(parts, 1):
        text = part.text and visible(part.text).replace('"', '""')
        lines += [
            f"        intervals [{number}]:",
            f"            xmin = {part.begin:.10g}",
            f"            xmax = {part.end:.10g}",
            f'            text = "{text}"',
        ]
    return "\n".join(lines) + "\n"


def _intervals(words: Sequence[Word], seconds: float) -> Iterator[Word]:
    """The words and the silence between them; a word of no length is written with the one after it."""
    at, held = 0.0, ""
    for word in words:
        text = f"{held} {word.text}".strip()
        if word.end <= max(word.begin, at):
            held = text
            continue
        if word.begin > at:
            yield Word("", at, word.begin)
        yield Word(text, max(word.begin, at), word.end)
        at, held = word.end, ""
    if seconds > at:
        yield Word(held, at, seconds)
