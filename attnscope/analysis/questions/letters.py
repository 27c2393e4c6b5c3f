"""When each word is said: from what a CTC head reads at each frame of a sound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from attnscope.analysis.questions.align import Alignment
from attnscope.analysis.questions.said import SaidToken, Word, is_wide
from attnscope.attention import Token
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Heard, Letters


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
