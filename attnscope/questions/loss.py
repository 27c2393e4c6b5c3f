"""How well a model predicts, and without some of its heads: what changes, and the rise of the loss.

Estimated by one gradient: Michel et al. 2019, Are Sixteen Heads Really Better than One?, section 4.1. The
importance of head h is ``E_x |∂L(x)/∂ξ_h|`` with a gate ``ξ_h = 1`` on the head's output. An ``x`` is one
model input: for a causal model a text, for a masked model a copy with every seventh token masked; ``L(x)`` is
the mean cross-entropy of its predictions in nats. Copies of one text are averaged first, and texts count
equally. The scores are not normalised by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.attention import Head, Kind, Site, Token
from attnscope.errors import InputError, SelectionError
from attnscope.measures.measurement import Sums
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Limit, batches, join_texts
from attnscope.models.targets import TURNS, PredictionBatch, batch_predictions, note_repeats, second_half
from attnscope.models.text.tokens import Vocabulary, without_marks
from attnscope.progress import listening, report
from attnscope.questions.answer import Answer
from attnscope.questions.head import TokenLoss
from attnscope.questions.intervention import PlainPass, editing
from attnscope.questions.selection import Asked, Selection, selection_of
from attnscope.questions.sentences import kind_title, name_pass
from attnscope.records import Meaning, Notes, record
from attnscope.scores import Score
from attnscope.storage.corpus import CorpusText
from attnscope.text import per_cent, visible
from attnscope.views import Cell, Column, Table

LIKELIEST = 3  # predictions named at each token

Likeliest: TypeAlias = tuple[tuple[str, float], ...]


@record("a prediction, the one that changed most first")
class Changed:
    """One prediction before and after: ``divergence`` is KL(before || after) in nats."""

    token: Annotated[str, Meaning("the token in whose place it is made")]
    wanted: Annotated[str, Meaning("the token that stands in the text")]
    position: Annotated[int, Meaning("its number")]
    divergence: Annotated[float, Meaning("KL divergence, in nats")]
    before: Annotated[Likeliest, Meaning("the most likely tokens with the head, and their probabilities")]
    after: Annotated[Likeliest, Meaning("the most likely tokens without it")]
    right: Annotated[tuple[float, float], Meaning("the wanted token's probability with and without the head")]


@record("heads removed (--head)", "ablate")
class Ablation:
    """What changed in a model's predictions, largest change first."""

    head: Annotated[str, Meaning("the head, or several with commas")]
    kind: Annotated[Kind, Meaning("its kind of attention, or that of the first")]
    title: Annotated[str, Meaning("the model and what ran")]
    changed: Annotated[tuple[Changed, ...], Meaning("every prediction")]
    divergence: Annotated[float, Meaning("the mean KL divergence, in nats")]
    losses: Annotated[tuple[float, float], Meaning("the loss with and without the head")]
    notes: Notes


MeanOutputs: TypeAlias = Mapping[Site, Tensor]  # the mean output of the heads of a site: [head, size]


def take_away(first: PlainPass, means: MeanOutputs | None = None) -> PlainPass:
    """A pass whose heads are changed to zeros, or to their means."""
    sites = first.record.sites
    zeros = [torch.zeros(1, 1, each.heads, 1) for each in sites]
    return first.putting(zeros if means is None else [means[each.site][None, None] for each in sites])


def ablate(model: Model, prepared: ModelInput, asked: Asked, heads: Sequence[Head] = ()) -> Ablation:
    """Compare the model's predictions with and without the output of one or more heads."""
    selection = selection_of(asked)
    heads = heads or [head for head in [selection.head] if head is not None]
    if not heads:
        raise SelectionError("which head is removed? name one, like L5H3")
    batch = join_texts([prepared])
    tokens = predicted_side(batch.labels)[0]
    vocabulary = model.objective.vocabulary
    changes: list[Changed] = []
    losses: list[Tensor] = []
    for predictions in batch_predictions(model, batch.prepared, [tokens]):
        with torch.no_grad(), model.threads(predictions.prepared):
            predict = partial(predictions.logits, model)
            first = take_away(PlainPass.run(model, predictions.prepared, predict))
            calls = first.calls(selection, heads)
            after = first.changed(calls)
        pair = torch.stack([first.before, after]).double().cpu().log_softmax(-1)  # [2, target, vocabulary]
        right = pair[:, torch.arange(pair.shape[1]), predictions.target_ids]  # [before | after, target]
        losses.append(-right)
        divergence = F.kl_div(pair[1], pair[0], reduction="none", log_target=True).sum(-1)  # [target]
        for number, target in enumerate(predictions.targets):
            before, after_ = (name_likeliest(vocabulary, one, LIKELIEST) for one in pair[:, number].exp())
            with_, without = right[:, number].exp().tolist()
            changes.append(
                Changed(
                    token=tokens[target.position].text,
                    wanted=read_token(vocabulary, target.id),
                    position=target.position,
                    divergence=float(divergence[number]),
                    before=before,
                    after=after_,
                    right=(with_, without),
                )
            )
    kinds = list(dict.fromkeys(head.kind or "encoder" for head in calls))
    removed = ", ".join(head.name if len(kinds) == 1 else str(head) for head in calls)
    was, is_ = torch.cat(losses, 1).mean(1).tolist()
    masked = model.objective.mask is not None
    turns = [f"a token is predicted while it and every {TURNS}th other token are masked"] if masked else []
    return Ablation(
        head=removed,
        kind=kinds[0],
        title=f"{name_pass(model, prepared)} · {' and '.join(map(kind_title, kinds))}",
        changed=tuple(sorted(changes, key=lambda one: -one.divergence)),
        divergence=sum(one.divergence for one in changes) / len(changes),
        losses=(was, is_),
        notes=(*model.notes, *prepared.notes, *first.record.notes, *turns, *note_repeats(model, [tokens])),
    )


LISTED_TOKENS = 8  # tokens listed whose prediction changed most


def ablation_answer(result: Ablation) -> Answer:
    """The mean change, and the predictions that changed most."""
    (was, is_), named = result.losses, "the heads" if "," in result.head else "the head"
    lead = Table(
        title=f"without {result.head} · {result.title}",
        subtitle=f"mean KL divergence of the predictions: {result.divergence:.3g} nats; loss: {was:.3f} with "
        f"{named}, {is_:.3f} without",
    )
    more = len(result.changed) - LISTED_TOKENS
    notes = [f"and {more:,} more predictions that change less"] if more > 0 else []
    rows = Table(
        (
            Column("token", right=True, long="cut"),
            Column("change", right=True, long="cut"),
            Column(f"with {named}"),
            Column("without"),
        ),
        tuple(
            (
                f"{visible(each.token)} {each.position}",
                f"{each.divergence:.3f}",
                show_likeliest(each.before, each.wanted, "[{}]"),
                show_likeliest(each.after, each.wanted, "[{}]"),
            )
            for each in result.changed[:LISTED_TOKENS]
        ),
        notes=(*notes, "[in brackets]: the token in the text", *result.notes),
        edge=True,
    )
    return Answer((lead, rows), {}, lambda: result)


def show_likeliest(likeliest: Likeliest, right: str, marked: str = "{}") -> Cell:
    """The most likely tokens with probabilities in per cent, the right one in bold, and ``marked``."""
    pieces: list[tuple[str, str]] = []
    for token, share in likeliest:
        named, style = (marked.format(token), "bold") if token == right else (token, "")
        pieces += [(f"{named} ", style), (f"{per_cent(share)}  ", "dim")]
    return tuple(pieces)


def name_likeliest(vocabulary: Vocabulary, shares: Tensor, count: int) -> Likeliest:
    """The likeliest tokens as a person reads them, with their probabilities.  [vocabulary]"""
    top = shares.topk(min(count, len(shares)))
    ids = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple((read_token(vocabulary, id_), share) for id_, share in ids)


def read_token(vocabulary: Vocabulary, id_: int) -> str:
    """A token of the vocabulary as a person reads it."""
    spelled = vocabulary.spell([id_])[0] or f"id {id_:,}"
    return spelled if spelled.startswith("##") else without_marks(vocabulary.decode([id_])) or spelled


Labels = Mapping[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]]


class HeadSums:
    """Sums over texts of one score of each head, which is averaged as ``measures.sums`` says.

    It is the head's ``importance``, the mean over a text's copies, or how far the loss rises token by token
    with its output set to ``means``, by site [head, size]; to zeros if there are none.
    """

    def __init__(self, importance: bool = False, means: MeanOutputs | None = None) -> None:
        self.importance, self.means = importance, means
        self.heads: dict[Head, Sums] = {}

    def add(
        self, model: Model, prepared: ModelInput, labels: Labels, selection: Selection | None = None
    ) -> None:
        """Add a batch of texts of one length; ``labels`` are their tokens by kind of attention.

        Raises ``ModelError`` for a model without an output head or with heads that cannot be gated, and
        ``InputError`` for a text with nothing to predict.
        """
        texts = predicted_side(labels)
        rows, baseline = torch.zeros(2, len(texts), dtype=torch.float64)
        values: dict[Head, Tensor] = {}  # [text]
        for predictions in batch_predictions(model, prepared, texts):
            if self.importance:
                of_text, before, found = _slopes(model, predictions)
            else:
                of_text, before, found = _rises(model, predictions, selection or Selection(), self.means)
            rows += torch.bincount(of_text, minlength=len(texts))
            baseline.index_add_(0, of_text, before)
            for head, each in found.items():
                values.setdefault(head, torch.zeros_like(rows)).index_add_(0, of_text, each)
        if self.importance:
            values = {head: each / rows.clamp(min=1) for head, each in values.items()}
            rows = (rows > 0).double()
        for head, each in values.items():
            sums = torch.stack([rows, each, baseline])[:, None, :, None]  # [sum, measure, text, head]
            self._add(head, Sums.from_texts(sums, torch.zeros_like(sums)))

    def merge(self, other: HeadSums) -> None:
        """Add another one's sums."""
        for head, sums in other.heads.items():
            self._add(head, sums)

    def _add(self, head: Head, sums: Sums) -> None:
        self.heads[head] = self.heads[head] + sums if head in self.heads else sums

    def scores(self) -> dict[Head, Score]:
        """The score of each head that has one; of a rise, beside the loss with all heads."""
        found = ((head, sums.scores()[0][0]) for head, sums in self.heads.items())
        return {head: score for head, score in found if score is not None}

    def state(self) -> list[Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        return [{"head": asdict(head), "sums": sums.state()} for head, sums in self.heads.items()]

    @classmethod
    def from_state(cls, state: Sequence[Mapping[str, Any]]) -> HeadSums:
        """What ``state`` saved. Raises ``ValueError`` or ``TypeError`` for anything else."""
        made = cls()
        made.heads = {Head(**entry["head"]): Sums.from_state(entry["sums"]) for entry in state}
        if any(sums.exact.shape[1:] != (1, 1) for sums in made.heads.values()):
            raise ValueError("these are not sums over texts")
        return made


_Found: TypeAlias = tuple[Tensor, Tensor, dict[Head, Tensor]]
"""The text of each prediction or copy, its baseline, and its score for each head."""


def _slopes(model: Model, predictions: PredictionBatch) -> _Found:
    """The slope of every copy's loss at each head's gate."""
    count, gates = len(predictions.texts), list[Tensor]()

    def gate(number: int, output: Tensor) -> Tensor:
        gates.append(torch.ones(count, output.shape[2], requires_grad=True))
        return output * gates[-1].to(output)[:, None, :, None]

    with torch.enable_grad(), model.threads(predictions.prepared):
        with editing(model, gate) as (record, _):
            losses = predictions.losses(model)  # [target]
        copies = torch.tensor([target.copy for target in predictions.targets])
        counts = torch.bincount(copies, minlength=count)
        loss = (losses / counts[copies].to(losses)).sum()  # the sum over copies of each one's mean
        slopes = torch.autograd.grad(loss, gates)  # by call [copy, head]
    found = {
        Head(each.site.layer, number, each.site.kind): of_head
        for each, slope in zip(record.sites, slopes, strict=True)
        for number, of_head in enumerate(slope.abs().double().cpu().T)
    }
    return torch.tensor(predictions.texts), torch.zeros(count, dtype=torch.float64), found


def _rises(
    model: Model, predictions: PredictionBatch, selection: Selection, means: MeanOutputs | None
) -> _Found:
    """The loss of each prediction, and how far it rises without each head."""
    of_text = torch.tensor([predictions.texts[target.copy] for target in predictions.targets])
    with torch.no_grad(), model.threads(predictions.prepared):
        losses = PlainPass.run(model, predictions.prepared, lambda: predictions.losses(model).cpu().double())
        first = take_away(losses, means)
        calls = first.calls(selection).items()
        return (
            of_text,
            first.before,
            {head: first.changed({head: mine}) - first.before for head, mine in calls},
        )


def predicted_side(labels: Labels) -> Sequence[Sequence[Token]]:
    """The tokens that a model predicts: those of a decoder, if there is one."""
    return labels["decoder"][0] if "decoder" in labels else labels["encoder"][0]


Way: TypeAlias = Literal["zero", "mean"]  # what replaces the output of an ablated head
MEAN_TEXTS = 1000  # texts at the beginning of a corpus for the mean outputs of heads


def describe_way(way: Way | None) -> tuple[str, ...]:
    """What replaces a head's output, in words; empty if none was ablated."""
    if way is None:
        return ()
    mean = f"its mean over the rows of the first {MEAN_TEXTS:,} texts"
    return (f"ablation: a head's output is set to {'zero' if way == 'zero' else mean}",)


def corpus_means(model: Model, entries: Iterable[CorpusText], limit: Limit) -> dict[Site, Tensor]:
    """The mean output of every head over all rows of the first texts, prepared as for prediction.

    -> by site [head, size]
    """
    texts = [(entry.text,) for entry in islice(entries, MEAN_TEXTS) if not entry.fault]
    read = model.prepare_all(texts, limit)
    sums: dict[Site, Tensor] = {}
    rows: dict[Site, int] = {}
    outputs: list[tuple[Tensor, int]] = []  # of each call of a pass: [head, size], and how many rows

    def add(number: int, output: Tensor) -> None:
        total = output.sum((0, 1), dtype=torch.float32).cpu().double()
        outputs.append((total, output[..., 0, 0].numel()))

    for batch in batches(text for text in read if isinstance(text, ModelInput)):
        with suppress(InputError):  # nothing to predict
            for predictions in batch_predictions(model, batch.prepared, predicted_side(batch.labels)):
                outputs.clear()
                prepared = predictions.prepared
                with torch.no_grad(), model.threads(prepared), editing(model, add) as (record, _):
                    predictions.logits(model)
                for each, (total, count) in zip(record.sites, outputs, strict=True):
                    sums[each.site] = sums.get(each.site, 0) + total
                    rows[each.site] = rows.get(each.site, 0) + count
    return {site: total / rows[site] for site, total in sums.items()}


WINDOW = 1024  # lines among which equal lengths are batched


def token_losses(model: Model, prepared: ModelInput) -> tuple[TokenLoss, ...]:
    """The loss of every token on the side that a model predicts: next tokens, or each token while masked."""
    batch = join_texts([prepared])
    tokens = predicted_side(batch.labels)[0]
    losses: dict[int, float] = {}
    for predictions in batch_predictions(model, batch.prepared, [tokens], whole=True):
        with torch.inference_mode(), model.threads(predictions.prepared):
            found = predictions.losses(model).tolist()
        losses |= {target.position: each for target, each in zip(predictions.targets, found, strict=True)}
    first = second_half(tokens) if model.objective.mask is None else 0
    return tuple(
        TokenLoss(token.text, losses.get(place), place in losses and place >= first)
        for place, token in enumerate(tokens)
    )


def measure_loss(model: Model, lines: Sequence[str], length: int) -> tuple[float, int, int]:
    """The mean cross-entropy of the first ``length`` tokens of lines, their number, and the vocabulary's."""
    total, tokens, vocabulary = 0.0, 0, 0
    masked = model.objective.mask is not None
    for start in range(0, len(lines), WINDOW):
        window = [(line,) for line in lines[start : start + WINDOW]]
        read = model.prepare_all(window, Limit(length, truncate=True))
        for batch in batches(text for text in read if isinstance(text, ModelInput)):
            texts = predicted_side(batch.labels)
            places = [place for text in texts for place, token in enumerate(text) if not token.special]
            if not any(masked or place > 0 for place in places):
                continue
            with listening(None):
                for predictions in batch_predictions(model, batch.prepared, texts, whole=True):
                    with torch.inference_mode(), model.threads(predictions.prepared):
                        for logits, wanted in predictions.scored(model):
                            total += float(F.cross_entropy(logits, wanted, reduction="sum"))
                            tokens, vocabulary = tokens + len(wanted), logits.shape[-1]
        report("line", start + len(window), len(lines))
    if not tokens:
        raise InputError("there is no token to predict in the files: give longer texts")
    return total / tokens, tokens, vocabulary
