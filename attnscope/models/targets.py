"""What a model predicts in a text: each next token, or masked tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.attention import Token
from attnscope.errors import InputError, SelectionError
from attnscope.models.huggingface.load import Classifier
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model
from attnscope.models.text.tokens import without_marks
from attnscope.progress import report
from attnscope.registry import nearest_name
from attnscope.text import per_cent, read_number, visible

TURNS = 7
"""A masked model reads this many copies of a text, each with every seventh token masked: all are, once."""

BATCH_TOKENS = 2048  # tokens of copies that go through a model at once
SCORED_ROWS = 512  # targets of one text whose scores over the vocabulary are held at a time


REPEATED = "of tokens repeated twice, only the second half counts in the loss: the first cannot be predicted"


def second_half(tokens: Sequence[Token]) -> int:
    """Where the second half of a text begins that is the same tokens twice, special ones aside; else 0."""
    plain = [place for place, token in enumerate(tokens) if not token.special]
    half, texts = len(plain) // 2, [tokens[place].text for place in plain]
    return plain[half] if half and texts == texts[:half] * 2 else 0


def note_repeats(model: Model, texts: Sequence[Sequence[Token]]) -> tuple[str, ...]:
    """What the losses of these texts leave out."""
    return (REPEATED,) if any(map(second_half, texts)) and model.objective.mask is None else ()


class Target(NamedTuple):
    """One token to predict: which one, and the copy and position whose output predicts it."""

    text: int
    position: int  # of the token in its text
    copy: int
    at: int
    id: int


@dataclass(frozen=True, eq=False)
class PredictionBatch:
    """Copies of texts as one input, the text of each copy, and the tokens to predict in them."""

    prepared: ModelInput
    texts: tuple[int, ...]
    targets: tuple[Target, ...]

    def logits(self, model: Model) -> Tensor:
        """One pass: the scores of each target over the vocabulary.  -> [target, vocabulary]"""
        return model.logits(self.prepared, *self._places(model))

    def scored(self, model: Model) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass: the scores of some targets at a time, and the tokens that are right."""
        copies, at = self._places(model)
        parts = model.logit_parts(self.prepared, copies, at, SCORED_ROWS)
        for logits, ids in zip(parts, torch.split(self.target_ids, SCORED_ROWS), strict=True):
            yield logits.float(), ids.to(logits.device)

    def losses(self, model: Model) -> Tensor:
        """One pass: the loss of each target in nats.  -> [target]"""
        return torch.cat([F.cross_entropy(*part, reduction="none") for part in self.scored(model)])

    def _places(self, model: Model) -> Tensor:
        """The copy of each target, and where it is predicted.  -> [copy | at, target]"""
        return torch.tensor([(target.copy, target.at) for target in self.targets], device=model.device).T

    @property
    def target_ids(self) -> Tensor:
        """The right tokens.  -> [target]"""
        return torch.tensor([target.id for target in self.targets])


def batch_predictions(
    model: Model, prepared: ModelInput, texts: Sequence[Sequence[Token]], *, whole: bool = False
) -> Iterator[PredictionBatch]:
    """The predictions in texts of one length, in batches of about ``BATCH_TOKENS``.

    ``texts`` are the tokens on the side that the model predicts: the decoder's, if there are two. Special
    tokens are not targets. A causal model predicts each next token in one copy of a text (of one that is the
    same tokens twice, those of the second half, unless it is to be ``whole``); a masked one reads
    ``TURNS`` copies, and in copy ``c`` the tokens number ``c``, ``c + TURNS``, ... are masked. Raises
    ``ModelError`` for a model without an output head, ``InputError`` for texts with nothing to predict.
    """
    objective = model.objective
    copies = [
        copy for text, tokens in enumerate(texts) for copy in _copies(text, tokens, objective.mask, whole)
    ]
    if not copies:
        raise InputError("there is no token to predict in the text: give a longer one")
    size = max(1, BATCH_TOKENS // len(texts[0]))
    for start in range(0, len(copies), size):
        batch = copies[start : start + size]
        rows = torch.tensor([copy[0].text for copy in batch], device=model.device)
        copied = prepared.texts(rows)
        if objective.mask is not None:
            ids = objective.ids(copied)  # [copy, token], a new tensor already
            for number, copy in enumerate(batch):
                ids[number, [target.position for target in copy]] = objective.mask
        targets = [target._replace(copy=number) for number, copy in enumerate(batch) for target in copy]
        if len(batch) == 1 and len(targets) > SCORED_ROWS:
            model.find_trunk(copied)
        copied = replace(copied, tokens=tuple(token for copy in batch for token in texts[copy[0].text]))
        yield PredictionBatch(copied, tuple(copy[0].text for copy in batch), tuple(targets))
        report("pass", start // size + 1, -(-len(copies) // size))


def _copies(text: int, tokens: Sequence[Token], mask: int | None, whole: bool) -> Iterator[list[Target]]:
    """The targets of each copy of a text; copies without any are left out."""
    plain, back = [position for position, token in enumerate(tokens) if not token.special], mask is None
    first = 1 if whole else max(1, second_half(tokens))
    parts = [[at for at in plain if at >= first]] if back else [plain[at::TURNS] for at in range(TURNS)]
    for part in filter(None, parts):
        yield [Target(text, position, 0, position - back, tokens[position].id) for position in part]


class Prediction(NamedTuple):
    """The score of a prediction, summed over texts, the words it is about, and the prediction in words."""

    score: Tensor
    chosen: int
    against: int | None
    description: str
    logits: Tensor  # [text, vocabulary], or of classes
    at: int | None = None  # the token at which it is made; None if the whole text is classified

    def scores(self, model: Model, prepared: ModelInput, copies: int = 1) -> Tensor:
        """One pass of copies of the text, changed or not.  -> [copy, vocabulary], or of classes"""
        if isinstance(model, Classifier):
            scores = model.class_scores(prepared)
            return scores if self.at is None else scores[:, self.at]
        assert self.at is not None
        texts = torch.arange(copies, device=model.device)
        return model.logits(prepared, texts, torch.full_like(texts, self.at))


NAMED_CLASSES = 8  # classes named in a message
MARKS = "Ġ▁"  # word-start marks of vocabularies


def place_prediction(model: Model, prepared: ModelInput, target: str | None) -> int:
    """The number of the token that ``target`` names, the first masked one, or the last of the text."""
    objective = model.objective
    ids = objective.ids(prepared)  # [text, token]
    _, at = split_target(target)
    if at is None:
        plain = [number for number, token in enumerate(predicted_tokens(prepared)) if not token.special]
        masked = [] if objective.mask is None else (ids[0] == objective.mask).nonzero().flatten().tolist()
        at = next(iter(masked), next(reversed(plain), ids.shape[1] - 1))
    return _require_token(at, ids.shape[1])


def split_target(target: str | None) -> tuple[str | None, int | None]:
    """The word or class and the token's number that a target names: ``red``, ``10``, or ``red@10``."""
    word, sign, number = (target or "").rpartition("@")
    at = read_number(number)
    return (word or None, at) if at is not None and bool(word) == bool(sign) else (target or None, None)


def _require_token(at: int, count: int) -> int:
    if at >= count:
        raise SelectionError(f"no token {at:,} to predict at: the text has the tokens 0-{count - 1:,}")
    return at


def score_prediction(
    model: Model, prepared: ModelInput, target: str | None, against: str | None = None
) -> Prediction:
    """The score of one prediction of each text, summed, and a sentence that names the prediction.

    For a classifier, ``target`` is the name or the number of a class. Otherwise it is a word of the
    vocabulary or the name of a token's class, or the number of the token to predict at, where the most
    likely is taken, or both as ``NAME@TOKEN``; ``None``: the most likely at the end. The score of the word
    ``against`` is subtracted. Raises ``ModelError`` for a model without an output head, and
    ``SelectionError`` for a word or a class that is not there.
    """
    if isinstance(model, Classifier):
        return _score_class(model, prepared, target)
    at, objective = place_prediction(model, prepared, target), model.objective
    tokens, (word, _) = predicted_tokens(prepared), split_target(target)
    texts = torch.arange(len(objective.ids(prepared)), device=model.device)
    logits = model.logits(prepared, texts, torch.full_like(texts, at)).float()  # [text, vocabulary]
    chosen = logits.argmax(-1)
    if word is not None:
        chosen = torch.full_like(texts, _id_of(model, word, logits[0].detach()))
    score = logits.gather(-1, chosen[:, None]).sum()
    over, other = "", None
    if against is not None:
        other = _id_of(model, against, logits[0].detach())
        score = score - logits[:, other].sum()
        over = f" over {visible(against.strip())!r}"
    where = "after" if objective.mask is None else "in the place of"
    description = f"the prediction of each text: the most likely token {where} its token {at:,}"
    if not tokens:
        return Prediction(score, int(chosen[0]), other, description, logits, at)
    named = visible(without_marks(objective.vocabulary.decode([int(chosen[0])])))
    share = float(logits[0].detach().softmax(-1)[chosen[0]])
    place = f"{where} token {at:,}, {visible(tokens[at].text)!r}"
    read = " (not masked)" * (objective.mask not in (None, int(objective.ids(prepared)[0, at])))
    description = f"the prediction: {named!r} ({per_cent(share)}){over} {place}{read}"
    return Prediction(score, int(chosen[0]), other, description, logits, at)


def _score_class(model: Classifier, prepared: ModelInput, target: str | None) -> Prediction:
    """The score of a class of each text, or of one token of each. Raises ``SelectionError``."""
    at: int | None = None
    scores = model.class_scores(prepared).float()  # [text, class] or [text, token, class]
    tokens, place, description = predicted_tokens(prepared), "", "the prediction of each text"
    if scores.ndim == 3:
        name, at = split_target(target)
        chosen = None if name is None else _class_of(model.labels, name)
        if at is None:  # where a class is most likely, special tokens aside; the last one if none is named
            plain = [number for number, token in enumerate(tokens) if not token.special]
            plain = plain or [scores.shape[1] - 1]
            shares = scores[0, plain].detach().softmax(-1)  # [token, class]
            at = plain[-1 if chosen is None else int(shares[:, chosen].argmax())]
        scores, place = scores[:, _require_token(at, scores.shape[1])], f" of token {at:,}"
        place += f", {visible(tokens[at].text)!r}" if tokens else ""
    else:
        chosen = None if target is None else _class_of(model.labels, target)
    detached = scores.detach()
    ids = detached.argmax(-1) if chosen is None else torch.full_like(detached[:, 0], chosen).long()
    score = scores.gather(-1, ids[:, None]).sum()
    if len(scores) == 1:
        share = per_cent(float(detached[0].softmax(-1)[ids[0]]))
        description = f"the prediction: class {visible(model.labels[int(ids[0])])!r} ({share})"
    return Prediction(score, int(ids[0]), None, f"{description}{place}", scores, at)


def _class_of(labels: tuple[str, ...], name: str) -> int:
    """The number of a class, by its name or its number. Raises ``SelectionError``."""
    if name in labels:
        return labels.index(name)
    number = read_number(name)
    if number is not None and number < len(labels):
        return number
    some = ", ".join(map(visible, labels[:NAMED_CLASSES])) + ", ..." * (len(labels) > NAMED_CLASSES)
    near = nearest_name(name, labels)
    raise SelectionError(f"no class {name!r}: {near}the model has {len(labels):,} classes: {some}")


def predicted_tokens(prepared: ModelInput) -> tuple[Token, ...]:
    """The tokens on the predicted side; empty if several texts are read together."""
    # text with a picture has a decoder without such inputs
    decoder = "decoder_input_ids" in prepared.inputs or prepared.first_kind == "decoder"
    axis = prepared.axes.get("decoder" if decoder else "encoder")
    return () if axis is None or isinstance(axis[0], range) else axis[0]


def _id_of(model: Model, word: str, logits: Tensor) -> int:
    """The token of a word; the most likely of several spellings. Raises ``SelectionError``."""
    spellings = enumerate(model.objective.vocabulary.spell(list(range(len(logits)))))
    matches = [id_ for id_, spelling in spellings if spelling and spelling.lstrip(MARKS) == word.strip()]
    if not matches:
        plain: list[Token] = []
        with suppress(InputError):  # a model without a tokenizer
            plain = [token for token in model.prepare(word).tokens if not token.special]
        # a tokenizer may lower-case a text
        if len(plain) == 1 and plain[0].text.lstrip(MARKS).casefold() == word.strip().casefold():
            return plain[0].id
        pieces = " · ".join(visible(token.text) for token in plain)
        several = f"it is {len(plain):,} tokens ({pieces}), " if len(plain) > 1 else ""
        raise SelectionError(
            f"no token {word!r} in the vocabulary: {several}name one token, or the number of one of the text"
        )
    return max(matches, key=lambda id_: float(logits[id_]))
