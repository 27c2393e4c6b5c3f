"""The layers of one pass, kept: those before a head that is taken away are computed once for all heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from attnscope.attention import Head, Kind, Site
from attnscope.capture import Observer, Record, recording
from attnscope.capture.hooks.gate import Edit, edited, replaced
from attnscope.capture.projections import first_tensor
from attnscope.errors import InputError, SelectionError
from attnscope.figures import Removal
from attnscope.models import Model, ModelInput
from attnscope.models.targets import TURNS, PredictionBatch, batch_predictions
from attnscope.models.text.tokens import Vocabulary, without_marks
from attnscope.questions.answer import Answer
from attnscope.questions.corpus import batches, join_texts
from attnscope.questions.importance import HeadSums, Labels, gated_sites, predicted_side
from attnscope.questions.selection import Asked, Selection, selection_of
from attnscope.questions.sentences import kind_title, name_pass, require_selected
from attnscope.records import Meaning, Notes, record
from attnscope.storage.corpus import CorpusText
from attnscope.text import per_cent, visible
from attnscope.views.table import Cell, Column, Table

Forward = Callable[..., Any]


class RanLayer(NamedTuple):
    """One call of a layer: what it returned, and how many attention calls there were before and after it."""

    layer: str
    output: Any
    before: int
    after: int

    @property
    def stack(self) -> str:
        """The path of the list that it is in."""
        return self.layer.rpartition(".")[0]

    @property
    def states(self) -> Tensor | None:
        """What it returned first: the residual stream, of most models."""
        return first_tensor(self.output)

    def with_states(self, changed: Tensor) -> RanLayer:
        """The same with another stream."""
        mine = self.states
        return self._replace(output=tree_map(lambda part: changed if part is mine else part, self.output))


@dataclass(eq=False)
class KeptLayers:
    """What every layer of a pass returned, in the order in which they ran.

    A layer that ended before an attention call returns the same whatever is done to that call; so it need not
    run again. A layer is a module with a number that is in no other such module: ``encoder.layer.3``. What it
    returns is copied whenever it is kept or given, as a model may write into it.
    """

    module: nn.Module
    ran: list[RanLayer] = field(default_factory=list)

    @property
    def layers(self) -> list[str]:
        """The paths of the layers."""
        named = ((name, name.split(".")) for name, _ in self.module.named_modules())
        return [
            name
            for name, (*outside, last) in named
            if last.isdecimal() and not any(part.isdecimal() for part in outside)
        ]

    @contextmanager
    def keeping(self, count: Callable[[], int]) -> Iterator[None]:
        """Keep what the layers return while the block runs; ``count`` tells the attention calls so far."""
        self.ran.clear()
        inside = 0

        def keep(name: str, forward: Forward) -> Forward:
            def run(*args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                before = count()
                inside += 1
                try:
                    output = forward(*args, **kwargs)
                finally:
                    inside -= 1
                if not inside:  # a layer that another one calls is a part of that
                    self.ran.append(RanLayer(name, _copy(output), before, count()))
                return output

            return run

        with self._forwards(keep):
            yield

    def skipped(self, call: int) -> int:
        """How many attention calls are left out where all layers before one call are given."""
        return sum(ran.after - ran.before for ran in self._given(call))

    def verify(self, calls: Iterable[int], same: Callable[[], bool]) -> None:
        """Forget what was kept unless passes that are given it end the ``same``: layers may keep more."""
        for count, call in {self.skipped(call): call for call in calls}.items():
            with self.giving(call):
                kept = count == 0 or same()
            if not kept:
                self.ran.clear()

    @contextmanager
    def giving(self, call: int) -> Iterator[None]:
        """Give what was kept of the layers that ended before an attention call, and run the others."""
        with self.giving_first(self._given(call)):
            yield

    @contextmanager
    def giving_first(self, ran: Sequence[RanLayer]) -> Iterator[None]:
        """Give what these layers returned, the first ones that run, and run the others."""
        given = iter(ran)

        def give(name: str, forward: Forward) -> Forward:
            def run(*args: Any, **kwargs: Any) -> Any:
                ran = next(given, None)
                if ran is None:
                    return forward(*args, **kwargs)
                assert ran.layer == name
                return _copy(ran.output)

            return run

        with self._forwards(give):
            yield

    def _given(self, call: int) -> list[RanLayer]:
        return [ran for ran in self.ran if ran.after <= call]

    @contextmanager
    def _forwards(self, make: Callable[[str, Forward], Forward]) -> Iterator[None]:
        """Put another forward in the place of each layer's; nothing of it stays behind."""
        changed: list[tuple[nn.Module, Any]] = []
        try:
            for name in self.layers:
                layer = self.module.get_submodule(name)
                changed.append((layer, vars(layer).get("forward")))
                vars(layer)["forward"] = make(name, layer.forward)
            yield
        finally:
            for layer, own in reversed(changed):
                if own is None:
                    vars(layer).pop("forward", None)
                else:
                    vars(layer)["forward"] = own


def _copy(output: Any) -> Any:
    return tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, output)


Calls: TypeAlias = Mapping[Head, Sequence[int]]
"""The attention calls of every head that is meant, by number."""

NEAR = 1e-3
"""Nats by which a loss may differ when kept layers are given, not run: rounding is far below it."""


def calls_of(record: Record, selection: Selection, heads: Sequence[Head] = ()) -> Calls:
    """The calls of each head that is meant: of ``heads``, or of all that are selected.

    Raises ``SelectionError`` for heads that do not exist.
    """
    calls: dict[Head, list[int]] = {}
    for asked in [selection.of(head) for head in heads] or [selection]:
        found = [
            (Head(each.site.layer, head, each.site.kind), call)
            for call, each in enumerate(record.sites)
            for head in asked.heads(each.site, each.heads) or ()
        ]
        require_selected(found, record, asked)
        for head, call in found:
            calls.setdefault(head, []).append(call)
    return calls


@dataclass(frozen=True, eq=False)
class PlainPass:
    """A pass as it is, whose layers are kept, so that those before a change need not run again."""

    before: Tensor
    sites: Sequence[Site]  # of each call
    calls: Calls
    kept: KeptLayers
    record: Record

    @classmethod
    def run(
        cls,
        model: Model,
        prepared: ModelInput,
        predict: Callable[[], Tensor],
        selection: Selection,
        heads: Sequence[Head] = (),
        *,
        edit: Edit = lambda number, output: None,
        observers: Sequence[Observer] = (),
    ) -> PlainPass:
        """Run ``predict`` and find the heads that are meant: those of ``heads``, or all that are selected.

        Raises ``ModelError`` for heads that cannot be gated, ``SelectionError`` for heads that do not exist.
        """
        kept = KeptLayers(model.module)
        with (
            recording(model.module, observers, prepared.axes, warn=False) as record,
            edited(edit) as gates,
            kept.keeping(lambda: len(gates.heads)),
        ):
            before = predict()
        sites = gated_sites(model, record, gates)
        calls = calls_of(record, selection, heads)
        made = cls(before, sites, calls, kept, record)
        made.verify([first for first, *_ in calls.values()], predict)
        return made

    def verify(self, calls: Iterable[int], predict: Callable[[], Tensor]) -> None:
        """Give no layers before these calls unless that changes nothing."""
        self.kept.verify(calls, lambda: torch.allclose(predict(), self.before, atol=NEAR, rtol=0))

    @contextmanager
    def edited_from(self, call: int, edit: Edit) -> Iterator[int]:
        """Run layers from that of an attention call on; ``edit`` counts calls as a whole pass does.

        The number of calls that are left out is given.
        """
        skipped = self.kept.skipped(call)
        with self.kept.giving(call), edited(lambda number, output: edit(number + skipped, output)):
            yield skipped


LIKELIEST = 3
"""Predictions that are named at each token."""


Likeliest: TypeAlias = tuple[tuple[str, float], ...]


@record("a prediction, the one that changed most first")
class Changed:
    """One prediction before and after: ``divergence`` is KL(before || after) in nats.

    ``token`` is how the text has it and ``wanted`` how the vocabulary does. ``before`` and ``after`` are the
    likeliest tokens with their probabilities, ``right`` the probabilities of the one that stands in the text.
    """

    token: Annotated[str, Meaning("the token in whose place it is made")]
    wanted: Annotated[str, Meaning("the token that stands in the text")]
    position: Annotated[int, Meaning("its number")]
    divergence: Annotated[float, Meaning("KL divergence, in nats")]
    before: Annotated[Likeliest, Meaning("the most likely tokens with the head, and their probabilities")]
    after: Annotated[Likeliest, Meaning("the most likely tokens without it")]
    right: Annotated[tuple[float, float], Meaning("the wanted token's probability with and without the head")]


@record("a head removed (--head)", "ablate")
class Ablation:
    """What changed in a model's predictions, those that changed most first.

    ``divergence`` is the mean over the predictions, ``losses`` the mean cross-entropy before and after, in
    nats.
    """

    head: Annotated[str, Meaning("the head")]
    kind: Annotated[Kind, Meaning("its kind of attention")]
    title: Annotated[str, Meaning("the model and what ran")]
    changed: Annotated[tuple[Changed, ...], Meaning("every prediction")]
    divergence: Annotated[float, Meaning("the mean KL divergence, in nats")]
    losses: Annotated[tuple[float, float], Meaning("the loss with and without the head")]
    notes: Notes


def ablate(model: Model, prepared: ModelInput, asked: Asked) -> Ablation:
    """Ask the model for its predictions as it is, and with the output of one head set to zero.

    A causal model predicts each next token; a masked one each token, hidden in turns. Raises ``ModelError``
    for a model without an output head or whose heads cannot be gated, ``SelectionError`` for a head that does
    not exist, and ``InputError`` for a text with nothing to predict.
    """
    selection = selection_of(asked)
    if selection.head is None:
        raise SelectionError("which head is removed? name one, like L5H3")
    batch = join_texts([prepared])
    tokens = predicted_side(batch.labels)[0]
    vocabulary = model.objective.vocabulary
    changes: list[Changed] = []
    losses: list[Tensor] = []
    for predictions in batch_predictions(model, batch.prepared, [tokens]):
        with torch.no_grad(), model.threads(predictions.prepared):
            first = PlainPass.run(model, predictions.prepared, partial(predictions.logits, model), selection)
            head, calls = next(iter(first.calls.items()))
            with first.edited_from(calls[0], replaced(head.head, dict.fromkeys(calls))):
                after = predictions.logits(model)
        pair = (
            torch.stack([first.before, after]).double().cpu().log_softmax(-1)
        )  # [before | after, target, vocabulary]
        right = pair.gather(-1, predictions.target_ids.expand(2, -1)[..., None])[
            ..., 0
        ]  # [before | after, target]
        losses.append(-right)
        divergence = F.kl_div(pair[1], pair[0], reduction="none", log_target=True).sum(-1)  # [target]
        tops = pair.exp().topk(LIKELIEST)
        for number, target in enumerate(predictions.targets):
            named = [
                tuple((_read(vocabulary, id_), share) for id_, share in zip(ids, shares, strict=True))
                for ids, shares in zip(
                    tops.indices[:, number].tolist(), tops.values[:, number].tolist(), strict=True
                )
            ]
            one, other = right[:, number].exp().tolist()
            changes.append(
                Changed(
                    tokens[target.position].text,
                    _read(vocabulary, target.id),
                    target.position,
                    float(divergence[number]),
                    named[0],
                    named[1],
                    (one, other),
                )
            )
    was, is_ = torch.cat(losses, 1).mean(1).tolist()
    masked = model.objective.mask is not None
    turns = [f"a token is predicted while it and every {TURNS}th other token are masked"] if masked else []
    return Ablation(
        head=selection.head.name,
        kind=head.kind or "encoder",
        title=f"{name_pass(model, prepared)} · {kind_title(head.kind or 'encoder')}",
        changed=tuple(sorted(changes, key=lambda one: -one.divergence)),
        divergence=sum(one.divergence for one in changes) / len(changes),
        losses=(was, is_),
        notes=(*model.notes, *prepared.notes, *first.record.notes, *turns),
    )


LISTED = 8
"""Tokens whose prediction changed most that are listed."""


def of_ablation(result: Ablation) -> Answer:
    """The change on average, and the predictions that changed most."""
    was, is_ = result.losses
    lead = Table(
        (),
        (),
        title=f"without {result.head} · {result.title}",
        subtitle=f"mean KL divergence of the predictions: {result.divergence:.3g} nats; loss: {was:.3f} with "
        f"the head, {is_:.3f} without",
    )
    more = len(result.changed) - LISTED
    notes = [f"and {more:,} more predictions that change less"] if more > 0 else []
    rows = Table(
        (
            Column("token", right=True, long="cut"),
            Column("change", right=True, long="cut"),
            Column("with the head"),
            Column("without"),
        ),
        tuple(
            (
                f"{visible(each.token)} {each.position}",
                f"{each.divergence:.3f}",
                _predictions(each, each.before),
                _predictions(each, each.after),
            )
            for each in result.changed[:LISTED]
        ),
        notes=(*notes, "[in brackets]: the token in the text", *result.notes),
        edge=True,
    )
    return Answer((lead, rows), {}, lambda: result)


def _predictions(change: Changed, top: Likeliest) -> Cell:
    """The likeliest tokens, each with its probability in per cent, the right one in bold and in brackets."""
    cell: list[tuple[str, str]] = []
    for token, share in top:
        right = token == change.wanted
        cell += [
            (f"[{token}] " if right else f"{token} ", "bold" if right else ""),
            (f"{per_cent(share)}  ", "dim"),
        ]
    return tuple(cell)


def _read(vocabulary: Vocabulary, id_: int) -> str:
    """A token of the vocabulary as a person reads it."""
    spelled = vocabulary.spell([id_])[0] or f"id {id_:,}"
    return spelled if spelled.startswith("##") else without_marks(vocabulary.decode([id_])) or spelled


Means: TypeAlias = Mapping[Site, Tensor]
"""The mean output of the heads of a site: [head, size]."""

Way: TypeAlias = Literal["zero", "mean"]
"""What stands in the place of a head that is taken away."""

MEAN_TEXTS = 1000
"""Texts at the beginning of a corpus over whose rows a head's mean output is taken."""


class Removals(HeadSums):
    """Adds up the losses without each head, text by text: texts, tokens, tokens squared and the loss of all.

    Of each head: the rise, its square, and its product with the tokens of its text. ``means`` are what stands
    in the place of heads, by site [head, size]; zeros if there are none.
    """

    sizes = 4, 3

    def __init__(self, means: Means | None = None) -> None:
        super().__init__()
        self.means = means

    def add(self, model: Model, prepared: ModelInput, labels: Labels, selection: Selection) -> None:
        """Add a batch of texts of one length; ``labels`` are their tokens by kind of attention.

        Raises ``ModelError`` for a model without an output head or with heads that cannot be taken away, and
        ``InputError`` for a text with nothing to predict.
        """
        texts = predicted_side(labels)
        plain, tokens = torch.zeros(2, len(texts), dtype=torch.float64)
        rises: dict[Head, Tensor] = {}  # [text]
        for predictions in batch_predictions(model, prepared, texts):
            of_text = torch.tensor([predictions.texts[target.copy] for target in predictions.targets])
            tokens.index_add_(0, of_text, torch.ones(len(of_text), dtype=torch.float64))
            with torch.no_grad(), model.threads(predictions.prepared):
                before, without = self._losses(model, predictions, selection)
            plain.index_add_(0, of_text, before)
            for head, losses in without.items():
                rise = rises.setdefault(head, torch.zeros(len(texts), dtype=torch.float64))
                rise.index_add_(0, of_text, losses - before)
        made = {
            head: torch.stack([rise.sum(), rise.square().sum(), (rise * tokens).sum()])
            for head, rise in rises.items()
        }
        totals = [(tokens > 0).sum(), tokens.sum(), tokens.square().sum(), plain.sum()]
        self.increase(torch.stack(totals).double(), made)

    def _losses(
        self, model: Model, predictions: PredictionBatch, selection: Selection
    ) -> tuple[Tensor, dict[Head, Tensor]]:
        """The loss of each prediction as it is, and without each head.  -> [target], by head [target]"""
        ids = predictions.target_ids

        def loss() -> Tensor:
            logits = predictions.logits(model)
            return F.cross_entropy(logits.float(), ids.to(logits.device), reduction="none").cpu().double()

        first, without = PlainPass.run(model, predictions.prepared, loss, selection), {}
        for address, mine in first.calls.items():
            values = {
                call: None if self.means is None else self.means[first.sites[call]][address.head]
                for call in mine
            }
            with first.edited_from(mine[0], replaced(address.head, values)):
                without[address] = loss()
        return first.before, without

    def figures(self) -> dict[Head, Removal]:
        """By head; the error is that of a ratio of sums over texts, as in ``measures.sums.Sums.figures``."""
        texts, tokens, tokens_squared, loss = self.totals.tolist()
        made = {}
        for head, (rise, squares, products) in ((head, sums.tolist()) for head, sums in self.heads.items()):
            if not tokens:
                break
            mean, error = rise / tokens, None
            spread = max(0.0, squares - 2 * mean * products + mean**2 * tokens_squared)
            if texts > 1:
                error = (spread * texts / (texts - 1)) ** 0.5 / tokens
            made[head] = Removal(mean, int(texts), error, mean + loss / tokens)
        return made


def describe_way(way: Way | None) -> tuple[str, ...]:
    """What stands in the place of a head, in words; nothing where none was taken away."""
    if way is None:
        return ()
    mean = f"its mean over the rows of the first {MEAN_TEXTS:,} texts"
    return (f"ablation: a head's output is set to {'zero' if way == 'zero' else mean}",)


def corpus_means(
    model: Model, entries: Iterable[CorpusText], max_tokens: int | None, truncate: bool
) -> dict[Site, Tensor]:
    """The mean output of every head over all rows of the first texts, as they are read to predict.

    -> by site [head, size]
    """
    texts = [(entry.text,) for entry in islice(entries, MEAN_TEXTS) if not entry.fault]
    read = model.prepare_all(texts, max_tokens=max_tokens, truncate=truncate)
    sums: dict[Site, Tensor] = {}
    rows: dict[Site, int] = {}
    for batch in batches(text for text in read if isinstance(text, ModelInput)):
        with suppress(InputError):  # nothing to predict
            for predictions in batch_predictions(model, batch.prepared, predicted_side(batch.labels)):
                outputs: list[tuple[Tensor, int]] = []  # of each call: [head, size], and how many rows

                def add(number: int, output: Tensor, outputs: list[tuple[Tensor, int]] = outputs) -> None:
                    total = output.sum((0, 1), dtype=torch.float32).cpu().double()
                    outputs.append((total, output[..., 0, 0].numel()))

                with (
                    torch.no_grad(),
                    model.threads(predictions.prepared),
                    edited(add) as gates,
                    recording(model.module, warn=False) as record,
                ):
                    predictions.logits(model)
                sites = gated_sites(model, record, gates)
                for site, (total, count) in zip(sites, outputs, strict=True):
                    sums[site] = sums[site] + total if site in sums else total
                    rows[site] = rows.get(site, 0) + count
    return {site: total / rows[site] for site, total in sums.items()}
