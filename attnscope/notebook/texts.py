"""Scores of heads over many texts as sums, which any program can compute in parts and add up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError

if TYPE_CHECKING:
    from attnscope.notebook.drawing import ScoreDrawing
    from attnscope.notebook.reader import Reader
    from attnscope.questions.corpus_stats import CorpusSums


class TextSums:
    """The sums of every head over some texts.

    They pickle, and ``a + b`` are the sums over the texts of both: the same bits in any order, as
    ``sum(parts)`` shows. ``finish`` gives the scores.
    """

    def __init__(self, sums: CorpusSums) -> None:
        self._sums = sums

    @property
    def texts(self) -> int:
        """How many texts were measured."""
        return self._sums.progress.texts

    @property
    def tokens(self) -> int:
        """How many tokens these have."""
        return self._sums.progress.tokens

    def __add__(self, other: TextSums) -> TextSums:
        """The sums over the texts of both. Raises ``InputError`` for another model, version or measures."""
        return TextSums(self._sums + other._sums)

    def __radd__(self, zero: int) -> TextSums:
        """The sums themselves: where ``sum`` begins."""
        return self if zero == 0 else NotImplemented

    def finish(self) -> ScoreDrawing:
        """The scores of every head with their standard errors, by the lift of its role.

        Raises ``InputError`` if no text was read.
        """
        from attnscope.notebook.drawing import ScoreDrawing

        stats = self._sums.finish()
        return ScoreDrawing(replace(stats, heads=tuple(stats.meeting(()))))

    def __repr__(self) -> str:
        """How much they are about."""
        return f"TextSums({self.texts:,} texts, {self.tokens:,} tokens of {self._sums.about.name})"


def measure_texts(
    model: Reader | str,
    texts: Iterable[str] | str | Path,
    *,
    measures: Sequence[str] | None = None,
    max_tokens: int | None = None,
    field: str = "text",
    **options: Any,
) -> TextSums:
    """Measure every head over texts: a list, or a corpus as ``--texts`` reads it.

    ``model`` is a ``Reader``, or a name for ``load`` with its ``options``. Texts that are too long are cut,
    unreadable ones are left out, and the answer says how many. The sums of parts of a corpus can be measured
    anywhere and added up.

    >>> parts = [attnscope.measure_texts("own", part) for part in (texts[:500], texts[500:])]
    >>> sum(parts).finish()
    """
    from attnscope.measures import DEFAULT
    from attnscope.notebook.reader import load
    from attnscope.questions.corpus import CorpusRun
    from attnscope.questions.corpus_stats import corpus_sums
    from attnscope.storage.corpus import ListedTexts, read_corpus

    if options and not isinstance(model, str):
        raise InputError("options belong to a model's name: this one is loaded")
    reader = load(model, **options) if isinstance(model, str) else model
    corpus = read_corpus(texts, field) if isinstance(texts, (str, Path)) else ListedTexts([*texts])
    names = DEFAULT if measures is None else tuple(dict.fromkeys(measures))
    run = CorpusRun(max_tokens=max_tokens, truncate=True)
    return TextSums(corpus_sums(reader._model, corpus, names=names, run=run))
