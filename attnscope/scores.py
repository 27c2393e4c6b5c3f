"""The scores of one head, each with its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from attnscope.attention import Head, Site
from attnscope.records import Meaning, Parts, derived, record

Weighting: TypeAlias = Literal["raw", "norm", "norm-residual", "zeroing", "gradient"]
"""What weights are multiplied by before they are measured; ``raw``: nothing."""


@record("a measure of a head, averaged over the rows that count", slots=True)
class Score:
    """A measure of one head, averaged over the rows that count.

    ``baseline`` is the same average with uniform attention over the unmasked keys, ``rows`` the number of
    rows averaged, ``texts`` the number of texts with such rows. ``error`` is the standard error of the value
    over texts, ``None`` for fewer than two: rows of one text are not independent samples.
    """

    value: Annotated[float, Meaning("the value")]
    baseline: Annotated[float, Meaning("the same with uniform attention over the unmasked keys")]
    rows: Annotated[int, Meaning("rows that counted")]
    texts: int
    error: Annotated[float | None, Meaning("standard error over the texts of a corpus", optional=True)] = None

    @derived("texts that had such rows", name="texts", optional=True, shape=int)
    def texts_of_error(self) -> int | None:
        return None if self.error is None else self.texts

    @property
    def lift(self) -> float:
        """How far the value stands above its baseline: ``value - baseline``."""
        return self.value - self.baseline


WEAK = "weak "  # the prefix of a role that passes no threshold but stands out among the model's heads


@record("the strongest pattern of a head", slots=True)
class Role:
    """What a head does, by the strongest pattern that passes its threshold.

    ``score``, ``baseline`` and ``rows`` belong to that pattern (for ``broad`` and ``none`` see
    ``attnscope.measures.roles.role``); ``sentence`` says it in plain words. The name begins with ``WEAK``
    if the pattern passes no threshold but hardly any other head of the model has it.
    """

    name: Annotated[str, Meaning("the role; attnscope explain says what it means")]
    score: Annotated[float, Meaning("the pattern's value")]
    baseline: Annotated[float, Meaning("the same with uniform attention")]
    rows: int
    sentence: Annotated[str, Meaning("the role in words")]

    @classmethod
    def from_score(cls, name: str, score: Score, sentence: str) -> Role:
        """The role that a value belongs to."""
        return cls(name, score.value, score.baseline, score.rows, sentence)

    @property
    def lift(self) -> float:
        """How far the score stands above its baseline: ``score - baseline``."""
        return self.score - self.baseline

    @property
    def pattern(self) -> str:
        """The name without the prefix for weak roles."""
        return self.name.removeprefix(WEAK)


IMPORTANCE, ABLATION = "importance", "ablation"
PREDICTIONS = (ABLATION, IMPORTANCE)
"""Columns that do not measure attention but how much the model's predictions lose without a head."""


@record("how much the model's predictions depend on a head", slots=True)
class Importance:
    """The mean over texts, and its standard error, ``None`` for a single text."""

    value: Annotated[float, Meaning("the slope of the loss at a gate on the head")]
    texts: Annotated[int, Meaning("texts that it is the mean of")]
    error: Annotated[float | None, Meaning("standard error over the texts")] = None


@record("how much the loss of the model's predictions rises without a head", slots=True)
class Removal:
    """How much the loss rises without a head, over all predictions, and the loss then."""

    value: Annotated[float, Meaning("the rise, in nats")]
    texts: Annotated[int, Meaning("texts that it is the mean of")]
    error: Annotated[float | None, Meaning("standard error over the texts")]
    loss: Annotated[float, Meaning("the loss without the head")]


@record("a head and its scores", slots=True)
class HeadScores:
    """All scores of one head of one site.

    ``absent`` gives the reason for every requested measure that does not exist here. ``role`` is ``None``
    if the measures behind roles were not requested, or there was no row to average; ``importance`` and
    ``ablation`` are ``None`` unless requested.
    """

    site: Annotated[Site, Parts(kind="its kind of attention", layer="its layer")]
    head: Annotated[int, Meaning("its number in the layer")]
    scores: Annotated[Mapping[str, Score], Meaning("by measure; attnscope explain lists them")]
    absent: Annotated[Mapping[str, str], Meaning("why a measure does not exist here, by measure")]
    role: Annotated[Role | None, Meaning("its role; null where no row counted")]
    importance: Annotated[
        Importance | None, Meaning("with ablate --importance", optional=True, shape=Importance)
    ] = None
    ablation: Annotated[Removal | None, Meaning("with attnscope ablate", optional=True, shape=Removal)] = None

    def score(self, name: str) -> Score | Importance | Removal | None:
        """A score of the head, or how much the predictions lose without it."""
        if name in PREDICTIONS:
            prediction: Importance | Removal | None = getattr(self, name)
            return prediction
        return self.scores.get(name)

    @property
    def address(self) -> Head:
        """Layer, head and kind of attention."""
        return Head(self.site.layer, self.head, self.site.kind)

    @property
    def name(self) -> str:
        """The head as users write it, ``L5H3``."""
        return self.address.name


def note_empty(heads: Sequence[HeadScores], names: Iterable[str]) -> Iterator[str]:
    """Why columns of a table are empty: measures that no head has a score of."""
    absent = {name: why for head in heads for name, why in head.absent.items()}
    empty = [name for name in names if not any(head.score(name) for head in heads)]
    reasons = {name: absent[name].removeprefix(name) for name in empty}
    for why in dict.fromkeys(reasons.values()):
        columns = ", ".join(name for name in empty if reasons[name] == why)
        yield f"empty columns: {columns}; each{why}"
