"""When each word of a sound is said: by cross attention, or by the letters of a CTC head."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Head, Site, Token
from attnscope.axes import Array
from attnscope.capture.observers import Rows, Sample, SharedRows
from attnscope.comparison import first_columns, most_likely_states
from attnscope.errors import InputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.sounds import SpeechModel
from attnscope.models.inputs import SoundFrames, SoundPart
from attnscope.models.text.tokens import BROKEN, Vocabulary
from attnscope.questions.answer import format_table
from attnscope.questions.head import loudness
from attnscope.records import Meaning, Notes, Parts, record
from attnscope.storage.files import parse_json
from attnscope.storage.sound import read_sound
from attnscope.text import visible
from attnscope.views import SoundMap, Table

WORD_START = "▁"  # of vocabulary entries whose decoded text has lost the space
FILTER_FRAMES, MAX_FILTER_FRAMES = 7, 99  # of the median filter: by default, and at most

Begin = Annotated[float, Meaning("when it begins, in seconds")]
End = Annotated[float, Meaning("when it ends")]
Confidence = Annotated[
    float | None,
    Meaning("the model's mean probability of its tokens, or of its letters' frames; null if unknown"),
]

PAUSE_SECONDS = 0.1  # from which on a quiet stretch at the edge of a word is a pause, not part of it
QUIET_SHARE = 0.25  # quiet is below this point between the 5 % faintest and the 5 % loudest frames


@record("a token")
class SpokenToken:
    """A token of the transcript, and when it begins and ends, in seconds."""

    token: Annotated[Token, Parts(text="as a person reads it", id="its number in the vocabulary")]
    begin: Begin
    end: End
    confidence: Confidence = None


@record("a word")
class SpokenWord:
    """A word with its punctuation, and when it begins and ends, in seconds."""

    text: Annotated[str, Meaning("the word, with the punctuation at it")]
    begin: Begin
    end: End
    confidence: Confidence = None
    tokens: tuple[SpokenToken, ...] = field(default=(), compare=False)


@record("when each word is said", "align", eq=False)
class SpokenText:
    """When each token and each word is said, in seconds of the file; ``way`` names the heads used."""

    tokens: Annotated[tuple[SpokenToken, ...], Meaning("the tokens of the transcript, in order")]
    words: Annotated[tuple[SpokenWord, ...], Meaning("the words, in order")]
    heads: Annotated[tuple[Head, ...], Meaning("the cross-attention heads that were used")]
    way: Annotated[str, Meaning("how the times were found")]
    title: str
    begin: Annotated[float, Meaning("where the sound that was read begins, in seconds of the file")]
    seconds: Annotated[float, Meaning("where it ends")]
    notes: Notes
    picture: SoundMap | None = None  # of one window aligned by cross-attention


@record("a head, and how it follows the words")
class AlignedHead:
    """How much of a head's attention lies within the time of the word that it helps to write."""

    head: Annotated[Head, Meaning("its address")]
    right: Annotated[float, Meaning("the share of tokens whose largest weight lies within their word's time")]
    weight: Annotated[float, Meaning("the share of a token's attention within its word's time")]
    baseline: Annotated[float, Meaning("the same for uniform attention")]


@record("heads by how well they follow the words (--rank)", "align")
class AlignedHeads:
    """All heads by how often their largest weight lies within the word's time, best first."""

    ranked: Annotated[tuple[AlignedHead, ...], Meaning("all heads, the most first")]
    way: Annotated[str, Meaning("where the words' times come from")]
    notes: Notes

    @property
    def table(self) -> Table:
        """One line per head."""
        formats = {
            "head": "{0.head.name}",
            "right": "{0.right:.2f}",
            "weight": "{0.weight:.3f}",
            "baseline": "{0.baseline:.3f}",
        }
        notes = (
            "right: share of tokens whose largest weight lies within their word's time; weight: their "
            "attention there; baseline: with uniform attention",
            f"times of the words: {self.way}",
        )
        return format_table(formats, self.ranked, notes=(*notes, *self.notes))


# by cross attention


def require_speech(model: Model, prepared: ModelInput) -> tuple[SpeechModel, SoundFrames]:
    """The speech model, unwrapped if it is weighted, and the sound. Raises ``InputError``."""
    inner = getattr(model, "model", model)
    if isinstance(inner, SpeechModel) and "cross" in prepared.axes and prepared.sound is not None:
        return inner, prepared.sound
    raise InputError(
        f"{model.name} cannot align words by its heads: choose a speech-to-text model, such as Whisper"
    )


def spoken_tokens(prepared: ModelInput) -> tuple[Token, ...]:
    """The tokens of the transcript."""
    axis = prepared.axes["cross"][0]
    return () if isinstance(axis, range) else axis


def read_cross_attention(
    model: Model, prepared: ModelInput, heard: SoundFrames, heads: Sequence[Head] = ()
) -> tuple[dict[Head, Tensor], int, list[str]]:
    """Run the model; read the cross-attention of ``heads``, or all, to the sound.  -> [row, frame] each

    The first row, whose number is returned, too, is the token before the first of the transcript; last are
    the notes of the pass.
    """
    spoken = spoken_tokens(prepared)
    wanted = [Head(head.layer, head.head) for head in heads]
    count = next((number for number, token in enumerate(spoken) if not token.special), len(spoken))
    if count == len(spoken):
        raise InputError("the transcript is empty: give one, or leave it out to have the model transcribe")
    chosen: dict[Site, list[int]] = {}

    def choose(site: Site, heads: int) -> list[int] | None:
        numbers = [head for head in range(heads) if not wanted or Head(site.layer, head) in wanted]
        return chosen.setdefault(site, numbers) if site.kind == "cross" else None

    rows = Sample(lambda attention: Rows([[row] for row in range(count - 1, len(attention.queries))]))
    record = model.run(prepared, [SharedRows([rows], choose)])
    by_head = {
        Head(each.site.layer, head): weights[:, : heard.frames].cpu()
        for each in rows.maps
        for head, weights in zip(chosen[each.site], each.values[0], strict=True)
    }
    for head in wanted:
        if head not in by_head:
            last = max(site.site.layer for site in record.sites if site.site.kind == "cross")
            raise SelectionError(f"no cross-attention head {head.name}: this model has layers 0-{last}")
    return {head: by_head[head] for head in wanted or by_head}, count - 1, record.notes


def align_words(model: Model, prepared: ModelInput, heads: Sequence[Head] = ()) -> SpokenText:
    """When each word is said, by ``heads``, or those that the model names, or half of all heads."""
    speech, heard = require_speech(model, prepared)
    way = "the given heads"
    if not heads:
        heads, way = speech.alignment_heads, "the model's alignment heads"
    rows, first, notes = read_cross_attention(model, prepared, heard, heads)
    if not heads:
        last = max(head.layer for head in rows)
        half = (last + 1) // 2
        rows = {head: each for head, each in rows.items() if head.layer >= half}
        layers = f"layer {last}" if half == last else f"layers {half}-{last}"
        way = f"all heads of {layers} (the model names no alignment heads)"
    width = getattr(model.module.config, "median_filter_width", FILTER_FRAMES)
    smooth = smooth_mean(torch.stack([*rows.values()]), width)
    frames = first_columns(-smooth.astype("float64"))
    times = [round(heard.begin + int(frame) * heard.seconds, 6) for frame in frames]
    spoken = spoken_tokens(prepared)[first + 1 :]
    probabilities = _probabilities(speech, prepared, first, [token.id for token in spoken])
    # a row attends to the token after it
    tokens = tuple(map(SpokenToken, spoken, times, times[1:], probabilities))
    words = _without_pauses(join_words(tokens, speech.reader.vocabulary), heard)
    text = SpokenText(tokens, words, tuple(rows), way, *_describe(model, prepared, heard, notes))
    return replace(text, picture=_draw(text, heard, smooth[:-1], frames))


def _probabilities(
    speech: SpeechModel, prepared: ModelInput, first: int, ids: Sequence[int]
) -> list[float | None]:
    """The model's probability of each token of the transcript; ``None`` without an output head."""
    if speech.writer is None:
        return [None] * len(ids)
    at = torch.arange(first, first + len(ids))
    with torch.inference_mode(), speech.threads(prepared):
        shares = speech.logits(prepared, torch.zeros_like(at), at).float().softmax(-1).cpu()
    return [float(row[id_]) for row, id_ in zip(shares, ids, strict=True)]


def _without_pauses(words: tuple[SpokenWord, ...], heard: SoundFrames) -> tuple[SpokenWord, ...]:
    """The words without pauses at their edges, found by loudness: a path of tokens has no gaps."""
    if heard.bands is None:
        return words
    loud = loudness(heard.bands[:, : heard.frames]).max(0)
    low, high = np.quantile(loud, (0.05, 0.95))
    times = heard.begin + np.flatnonzero(loud > low + QUIET_SHARE * (high - low)) * heard.seconds
    trimmed = []
    for word in words:
        inside = times[(times > word.begin - heard.seconds / 2) & (times < word.end - heard.seconds / 2)]
        begin, end = (inside[0], inside[-1] + heard.seconds) if len(inside) else (word.begin, word.end)
        begin = begin if begin - word.begin >= PAUSE_SECONDS else word.begin
        end = end if word.end - end >= PAUSE_SECONDS else word.end
        trimmed.append(replace(word, begin=round(float(begin), 6), end=round(float(end), 6)))
    return tuple(trimmed)


def _describe(
    model: Model, prepared: ModelInput, heard: SoundFrames, passed: Sequence[str] = ()
) -> tuple[str, float, float, Notes]:
    """The title, the part that is heard, in seconds, and the notes, last those of the pass."""
    end = heard.begin + heard.frames * heard.seconds
    return model.title, heard.begin, end, (*model.notes, *prepared.notes, *passed)


def _draw(result: SpokenText, heard: SoundFrames, smooth: Array, frames: Array) -> SoundMap:
    """The aligned map, and the path through it.  [token, frame], [token and the end]"""
    names = ", ".join(head.name for head in result.heads)
    return SoundMap(
        smooth,
        tuple(one.token.text.strip() or "␣" for one in result.tokens),
        tuple(frames.tolist()),
        tuple((word.text, round((word.begin - heard.begin) / heard.seconds)) for word in result.words),
        heard.seconds,
        heard.begin,
        None if heard.bands is None else loudness(heard.bands[:, : heard.frames]),
        title=f"{result.title} · {len(result.words)} words",
        subtitle=f"by {result.way}{names and ': '}{names}",
        notes=(
            "bright: attention above the mean over tokens (smoothed); line: dynamic time warping path",
            *result.notes,
        ),
    )


def rank_heads(model: Model, prepared: ModelInput, times: Sequence[SpokenWord] | None = None) -> AlignedHeads:
    """All heads by how much of their attention lies within each word's time, by ``times`` or ``align_words``.

    Raises ``InputError`` for times of other words.
    """
    text, (_, heard) = align_words(model, prepared), require_speech(model, prepared)
    by_head, *_ = read_cross_attention(model, prepared, heard)
    if times is not None and len(times) != len(text.words):
        raise InputError(f"--times has {len(times):,} words, and the transcript {len(text.words):,}")
    weights = torch.stack([*by_head.values()]).double().numpy()  # [head, row, frame]
    rows = {id(token): row for row, token in enumerate(text.tokens)}
    within = np.zeros(weights.shape[1:], bool)  # the time of each token's word, [row, frame]
    for word, own in zip(times or text.words, text.words, strict=True):
        first, stop = (round((edge - heard.begin) / heard.seconds) for edge in (word.begin, word.end))
        first = min(max(first, 0), heard.frames - 1)
        for token in own.tokens:
            within[rows[id(token)], first : max(first + 1, stop)] = True
    spoken = np.flatnonzero(within.any(-1))
    right = within[spoken, weights[:, spoken].argmax(-1)].mean(-1)  # [head]
    inside = (weights * within)[:, spoken].sum(-1).mean(-1)
    baseline = float(within[spoken].sum(-1).mean()) / len(prepared.axes["cross"][1])
    scores = zip(by_head, right.tolist(), inside.tolist(), strict=True)
    ranked = sorted(scores, key=lambda each: (-each[1], -each[2]))
    way, notes = f"by {text.way}" if times is None else "the given times", text.notes
    if 2 * sum(word.begin == word.end for word in times or text.words) > len(text.words):
        notes = ("most words have no duration, so the ranks mean little: give --times", *notes)
    return AlignedHeads(tuple(AlignedHead(*each, baseline) for each in ranked), way, notes)


def read_times(text: str) -> tuple[SpokenWord, ...]:
    """Words and their times: as ``align --json`` writes them, or lines of begin, end and word, in seconds.

    Raises ``InputError`` for anything else.
    """
    lines: list[Any]
    try:
        if text.lstrip().startswith("{"):
            lines = [(each["begin"], each["end"], each["text"]) for each in parse_json(text)["words"]]
        else:
            lines = [line.split(maxsplit=2) for line in text.splitlines() if line.strip()]
        words = [SpokenWord(str(word), float(begin), float(end)) for begin, end, word in lines]
    except (ValueError, KeyError, TypeError):
        words = []
    if not words or not all(0 <= word.begin <= word.end < math.inf for word in words):
        raise InputError("write times as lines of begin, end and word: 0.5 0.78 The; or as align --json does")
    return tuple(words)


def smooth_mean(weights: Tensor, width: object) -> Array:
    """The map that dynamic time warping follows.  [head, row, frame] -> [row, frame]

    Each head's weights are standardized over the rows, smoothed by a median over ``width`` frames, and
    averaged, as in transformers' Whisper.
    """
    from scipy.ndimage import median_filter

    spread = torch.std(weights, dim=-2, keepdim=True, unbiased=False)
    clear = (weights - torch.mean(weights, dim=-2, keepdim=True)) / spread
    smooth: Array = torch.where(spread > 0, clear, 0).numpy()  # 0 where rows do not differ
    width = (
        width if isinstance(width, int) and 0 < width <= MAX_FILTER_FRAMES and width % 2 else FILTER_FRAMES
    )
    if smooth.shape[-1] > width // 2:
        smooth = median_filter(smooth, size=(1, 1, width), mode="mirror")
    mean: Array = torch.from_numpy(smooth).mean(0).numpy()
    return mean


# by the letters of a CTC head


def reads_letters(prepared: ModelInput) -> bool:
    """Whether a CTC head read the sound."""
    return prepared.sound is not None and prepared.sound.letters is not None


def align_letters(model: Model, prepared: ModelInput, text: str | None = None) -> SpokenText:
    """When each word of a CTC head's text is said, from its first letter's first frame to its last's end.

    Repeated letters are merged and blanks dropped, as in transformers' decoding. A given ``text`` is
    placed on the most likely path of its letters.
    """
    heard = prepared.sound
    assert heard is not None
    letters = heard.letters
    assert letters is not None
    count = round(heard.frames * heard.seconds / letters.seconds)
    scores, path = letters.scores[:count], letters.ids[:count]
    ids, way = None, "the letters of the CTC head, frame by frame"
    if text is not None:
        assert isinstance(model, SpeechModel)
        letters = model.spell_transcript(text, letters)
        ids = letters.ids.tolist()
        way = "the most likely path of the CTC head through the letters of the text"
        states = most_likely_states(scores, ids, letters.blank)
        if states is None:
            raise InputError(
                f"the text's {len(ids):,} letters do not fit into the {count:,} frames of the sound"
            )
        path = states
    tokens, at = [], 0
    for state, frames in groupby(path.tolist()):
        begin, at = at, at + len(list(frames))
        id_ = state if ids is None else ids[state // 2] if state % 2 else letters.blank
        if id_ != letters.blank:
            first, last = (round(heard.begin + edge * letters.seconds, 6) for edge in (begin, at))
            probability = float(np.exp(scores[begin:at, id_]).mean())
            tokens.append(SpokenToken(Token(letters.read[id_], id_), first, last, probability))
    pieces, apart = [], True
    for one in tokens:
        if one.token.id != letters.boundary:
            begins = apart or one.token.id in letters.begin or is_wide(one.token.text)
            pieces.append((one.token.text, begins, [one]))
        apart = one.token.id == letters.boundary
    words = _join(pieces)
    if not words:
        raise InputError(f"{model.name} hears no speech: its CTC head reads no letter")
    return SpokenText(tuple(tokens), words, (), way, *_describe(model, prepared, heard))


# words


def join_words(tokens: Sequence[SpokenToken], vocabulary: Vocabulary) -> tuple[SpokenWord, ...]:
    """Words from tokens: a space begins one, and so does a wide letter, as in Chinese."""
    pieces, pending = [], list[SpokenToken]()
    for number, one in enumerate(tokens):
        if one.token.special:
            continue
        pending.append(one)
        text = vocabulary.decode([each.token.id for each in pending])
        more = number + 1 < len(tokens) and not tokens[number + 1].token.special
        if text.endswith(BROKEN) and more and len(pending) < 4:  # bytes of one character
            continue
        spelled = vocabulary.spell([pending[0].token.id])[0] or ""
        begins = text[:1].isspace() or spelled.startswith(WORD_START) or is_wide(text)
        pieces.append((text, begins, pending))
        pending = []
    return _join(pieces)


def _join(pieces: Sequence[tuple[str, bool, list[SpokenToken]]]) -> tuple[SpokenWord, ...]:
    """The words of pieces: their text, whether they begin a word, and their tokens."""
    words: list[list[tuple[str, bool, list[SpokenToken]]]] = []
    for piece in pieces:
        if piece[1] or not words:
            words.append([])
        words[-1].append(piece)
    spoken = []
    for word in words:
        tokens = [one for *_, each in word for one in each]
        known = [one.confidence for one in tokens if one.confidence is not None]
        confidence = sum(known) / len(known) if known else None
        text = "".join(text for text, *_ in word).strip()
        spoken += (
            [SpokenWord(text, tokens[0].begin, tokens[-1].end, confidence, tuple(tokens))] if text else []
        )
    return tuple(spoken)


def is_wide(text: str) -> bool:
    """Whether a text begins with a letter of a script without spaces: Chinese, Thai, Lao, Burmese, Khmer."""
    if not text[:1].isalpha():
        return False
    code = ord(text[0])
    southern = 0xE00 <= code <= 0xEFF or 0x1000 <= code <= 0x109F or 0x1780 <= code <= 0x17FF
    return southern or unicodedata.east_asian_width(text[0]) == "W"


# in windows


def is_long(model: Model, path: Path, part: SoundPart) -> bool:
    """Whether a part of a sound is longer than the model reads at once."""
    once = model.most_seconds if isinstance(model, SpeechModel) else math.inf
    return once < math.inf and read_sound(path, part.begin, part.end).seconds > once


def align_windows(
    model: Model, path: Path, write: Callable[..., ModelInput], heads: Sequence[Head], part: SoundPart
) -> SpokenText:
    """When each generated word is said, one window of the sound at a time; ``write`` generates.

    The last word of a window may be cut off, so the next window begins with it if that advances by at
    least half a window; times continue. Raises ``InputError`` for an empty transcript.
    """
    assert isinstance(model, SpeechModel)
    begin, end = part.begin, part.begin + read_sound(path, part.begin, part.end).seconds
    windows, tokens, words = list[SpokenText](), list[SpokenToken](), list[SpokenWord]()
    notes: dict[str, None] = dict.fromkeys(model.notes)
    while begin < end:
        stop = following = min(begin + model.most_seconds, end)
        sound = model.prepare_audio(path, part=SoundPart(begin, stop))
        prepared = write(sound)
        if not all(token.special for token in spoken_tokens(prepared)):
            windows.append(result := align_words(model, prepared, heads))
            wrote = {*prepared.notes} - {*sound.notes}  # the words show it
            notes |= dict.fromkeys(note for note in result.notes if note not in wrote)
            last = result.words[-1].begin if result.words else stop
            cut = stop < end and last > begin + model.most_seconds / 2
            following = last if cut else stop
            tokens += [one for one in result.tokens if one.begin < last or not cut]
            words += [word for word in result.words if word.begin < last or not cut]
        begin = following
    if not windows:
        raise InputError(f"{model.name} hears no speech in {path}")
    notes |= dict.fromkeys(
        (
            f"the model wrote {len(tokens):,} tokens",
            f"read in {len(windows)} windows of {model.most_seconds:g} seconds; each begins with the last "
            "word of the one before",
        )
    )
    first = windows[0]  # its picture shows one window alone, and is left out
    return SpokenText(
        tuple(tokens), tuple(words), first.heads, first.way, first.title, first.begin, end, tuple(notes)
    )


# for other programs


def write_srt(result: SpokenText) -> str:
    """Subtitles of one word each."""
    return "\n".join(
        f"{number}\n{_clock(word.begin)} --> {_clock(word.end)}\n{visible(word.text)}\n"
        for number, word in enumerate(result.words, 1)
    )


def _clock(seconds: float) -> str:
    """``01:02:03,450``"""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02},{rest % 1000:03}"


TEXTGRID = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = {end:.10g}
tiers? <exists>
size = 1
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = {end:.10g}
        intervals: size = {count}
"""
INTERVAL = """        intervals [{}]:
            xmin = {:.10g}
            xmax = {:.10g}
            text = "{}"
"""


def write_textgrid(result: SpokenText) -> str:
    """A TextGrid of one tier, whose intervals fill the whole sound, and the last frame if that is longer."""
    end = max([result.seconds, *(word.end for word in result.words)])
    parts = [
        INTERVAL.format(number, part.begin, part.end, part.text and visible(part.text).replace('"', '""'))
        for number, part in enumerate(_intervals(result.words, end), 1)
    ]
    return TEXTGRID.format(end=end, count=len(parts)) + "".join(parts)


def _intervals(words: Sequence[SpokenWord], seconds: float) -> Iterator[SpokenWord]:
    """The words and the silence between them; a word without duration joins the next one."""
    at, pending = 0.0, ""
    for word in words:
        text = f"{pending} {word.text}".strip()
        if word.end <= max(word.begin, at):
            pending = text
            continue
        if word.begin > at:
            yield SpokenWord("", at, word.begin)
        yield SpokenWord(text, max(word.begin, at), word.end)
        at, pending = word.end, ""
    if seconds > at:
        yield SpokenWord(pending, at, seconds)


WRITERS = {"srt": write_srt, "textgrid": write_textgrid}
