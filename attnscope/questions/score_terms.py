"""The score of a head before the softmax as a sum of terms: what wrote the query times what wrote the key.

A score is the product of a query and a key, and each of these is a sum of what wrote to its token's residual
stream: embeddings, earlier heads, feed-forward layers, biases, with the scales of norms held at their values
in the pass. So score[i, j] = Σ_a Σ_b q_a[i] · k_b[j], up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Axis, Head, Site
from attnscope.axes import Array
from attnscope.capture import Record, SiteRecord
from attnscope.capture.record import tolerance
from attnscope.capture.rows.scores import ScoredRows
from attnscope.capture.stream import Lost, Summand
from attnscope.capture.summands import StreamStates, Summands, carried_by, summands_of
from attnscope.errors import ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.questions.find import ResolvedQuestion, explain_no_answer
from attnscope.questions.logits import require_weights, watching_stream
from attnscope.questions.rules import Question
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import kinds_of, selected_sites
from attnscope.text import visible


class Cells(NamedTuple):
    """Some cells of a map, each with a weight, and those that they are compared with."""

    asked: Tensor  # [row, key]; sums to 1
    other: Tensor  # [row, key]; sums to 1
    rows: Tensor  # [row], their numbers
    names: tuple[str, str]  # from where, to where


@dataclass(frozen=True, eq=False)
class ScoreTerms:
    """The terms of a head's score, as means over some cells, and over those that they are compared with.

    ``means`` are those of the weight, the score and the steps between: ``weight``, ``score``, ``normalizer``,
    ``product``, ``capped``, ``bias`` and ``bias_excess``.
    """

    site: Site
    head: Head
    name: str  # of the head, with its kind where the model has several
    cells: Cells
    query: Summands  # a sum for each row
    key: Summands  # a sum for each row's cells, then one for each row's others
    values: Array  # [query part, key part]
    others: Array  # [query part, key part]
    means: dict[str, float]
    softcap: float | None = None

    @property
    def queries(self) -> tuple[Summand, ...]:
        """The parts of the query."""
        return tuple(self.query.vectors)

    @property
    def keys(self) -> tuple[Summand, ...]:
        """The parts of the key."""
        return tuple(self.key.vectors)


@dataclass(frozen=True, eq=False)
class ScorePass:
    """A pass that kept its gradients, whose scores can be taken apart."""

    model: Model
    prepared: ModelInput
    states: StreamStates
    record: Record

    @classmethod
    def run(cls, model: Model, prepared: ModelInput) -> ScorePass:
        """Run a text. Raises ``ModelError`` for a trace."""
        require_weights(prepared)
        states = StreamStates(length=len(prepared.tokens))
        with watching_stream(model, prepared, states) as record:
            prepared.call(model.module)
        return cls(model, prepared, states, record)

    def find(self, head: Head) -> SiteRecord:
        """The call of a head. Raises ``SelectionError`` that says what exists."""
        chosen = selected_sites(self.record, Selection(head))
        kind = kinds_of((each.site for each in chosen), self.prepared.first_kind)[0]
        return next(each for each in chosen if each.site.kind == kind)

    def explain(self, head: Head, question: Question, against: Question | None = None) -> ScoreTerms:
        """The terms of a question's unmasked cells, less those of the row's other keys, or ``against``.

        Raises ``SelectionError`` for cells that do not exist, ``ModelError`` where no score can be followed.
        """
        site = self.find(head)
        asked = self._place(question, site, head.head)
        other = None if against is None else self._place(against, site, head.head)
        if int((asked != 0).sum()) == 1:
            names = self._name_cell(site.site, *divmod(int(asked.argmax()), asked.shape[1]))
        else:
            names = question.left.text, question.right.text
        return self._explain(site.site, head.head, asked, other, names)

    def explain_cell(self, head: Head, row: int, key: int) -> ScoreTerms:
        """The terms of one cell."""
        site = self.find(head).site
        attention = self.states.attentions[site]
        asked = torch.zeros(len(attention.queries), len(attention.keys), dtype=torch.float64)
        asked[row, key] = 1
        return self._explain(site, head.head, asked, None, self._name_cell(site, row, key))

    def explain_all(
        self, head: Head, top: int
    ) -> Iterator[tuple[tuple[int, int], str, list[tuple[str, str, float, float]]]]:
        """Every unmasked cell of a head, its name, and its strongest terms: parts, value, excess."""
        site = self.find(head).site
        attention, call, number = self.states.attentions[site], self._call(site), head.head
        both = self._summands(site, number, *(torch.eye(side.shape[2]) for side in (call.query, call.key)))
        query, key = (torch.stack([*side.vectors.values()]) for side in both)  # [part, token, size]
        names = [(one.name, other.name) for one in both[0].vectors for other in both[1].vectors]
        for row in range(query.shape[1]):
            keys = unmasked_keys(attention, row, number).nonzero().flatten()
            terms = scale_of(call, number) * torch.einsum("ps,qks->kpq", query[:, row], key[:, keys]).flatten(
                1
            )
            whole = call.key[0, number // shared_by(call), keys] @ call.query[0, number, row]
            products, sums = scale_of(call, number) * whole.detach().double().cpu(), terms.sum(1)
            worst = int((products - sums).abs().argmax())
            sizes = terms[worst].reshape(len(query), -1).sum(1).abs().sum()
            self._require_sum(site, float(sums[worst]), float(products[worst]), float(sizes))
            excess = (terms - terms.mean(0)) * (len(keys) / max(1, len(keys) - 1))  # over the other keys
            weights = attention.rows(row, row + 1, [number])[0, 0, 0]
            for at, place in enumerate(keys.tolist()):
                strongest = excess[at].abs().argsort(descending=True, stable=True)[:top].tolist()
                listed = [
                    (*names[term], float(terms[at, term]), float(excess[at, term])) for term in strongest
                ]
                named = " → ".join(self._name_cell(site, row, place))
                yield (row, place), f"{named}: {float(weights[place]):.3f}", listed

    def carried(
        self, terms: ScoreTerms, parts: tuple[Summand, Summand], side: int
    ) -> dict[tuple[int, int], float]:
        """What the head behind a term's query part (side 0) or key part (1) carries of it, by row and key."""
        call, number, cells, head = self._call(terms.site), terms.head.head, terms.cells, parts[side].head
        assert head is not None
        tensor = (call.query, call.key)[side]
        seed = torch.zeros_like(tensor)
        if side == 0:
            slope = terms.key.vectors[parts[1]][: len(cells.rows)]
            seed[0, number, cells.rows] = (scale_of(call, number) * slope).to(seed)
        else:
            slope = cells.asked.T @ terms.query.vectors[parts[0]]
            seed[0, number // shared_by(call)] = (scale_of(call, number) * slope).to(seed)
        with self.model.threads(self.prepared):
            return carried_by(self.states, tensor, seed, head)

    def _name_cell(self, site: Site, row: int, key: int) -> tuple[str, str]:
        """The tokens of a row and a key."""
        attention = self.states.attentions[site]
        return name_token(attention.queries, row), name_token(attention.keys, key)

    def _place(self, question: Question, site: SiteRecord, head: int) -> Tensor:
        """The unmasked cells of a question, each with the same weight.  -> [query, key]"""
        attention = self.states.attentions[site.site]
        resolved = ResolvedQuestion.of(question, attention.queries, attention.keys)
        cells = torch.zeros(1, 1) if resolved is None else resolved.table.double()
        for row in cells.any(1).nonzero().flatten().tolist():
            cells[row] *= unmasked_keys(attention, row, head)
        if not cells.any():
            raise SelectionError(explain_no_answer(question, self.prepared, [site]))
        return cells / cells.sum()

    def _explain(
        self, site: Site, head: int, asked: Tensor, other: Tensor | None, names: tuple[str, str]
    ) -> ScoreTerms:
        """The terms of some cells, less those of others; by default of the row's other unmasked keys.

        A row with one key is compared with itself: its weight is 1 whatever its score.
        """
        if other is None:
            other = asked.clone()
            for row in asked.any(1).nonzero().flatten().tolist():
                rest = unmasked_keys(self.states.attentions[site], row, head) & (asked[row] == 0)
                if rest.any():
                    other[row] = rest * (asked[row].sum() / rest.sum())
        rows = (asked.any(1) | other.any(1)).nonzero().flatten()
        cells, call = Cells(asked[rows], other[rows], rows, names), self._call(site)
        chosen = torch.nn.functional.one_hot(rows, call.query.shape[2])
        query, key = self._summands(site, head, chosen, torch.cat([cells.asked, cells.other]))
        queries = torch.stack([*query.vectors.values()])  # [part, row, size]
        keys = torch.stack([*key.vectors.values()])
        keys = keys.reshape(len(keys), 2, len(rows), -1)  # [part, asked | other, row, size]
        values, others = (scale_of(call, head) * torch.einsum("prs,kwrs->wpk", queries, keys)).numpy()
        means = self._measure(site, head, cells)
        self._require_sum(site, float(values.sum()), means["product"], float(np.abs(values.sum(1)).sum()))
        address, cap = Head(site.layer, head, site.kind), call.softcap
        return ScoreTerms(
            site, address, self.states.name(address), cells, query, key, values, others, means, cap
        )

    def _require_sum(self, site: Site, found: float, product: float, size: float) -> None:
        """Raise ``ModelError`` if terms of this size do not sum to query times key."""
        if not abs(product - found) <= tolerance(self.states.attentions[site].dtype) * max(1.0, size):
            reason = f"their terms sum to {found:.4g}, query times key is {product:.4g}"
            raise ModelError(f"the scores of {self.model.name} cannot be explained: {reason}")

    def _summands(self, site: Site, head: int, rows: Tensor, keys: Tensor) -> tuple[Summands, Summands]:
        """The parts of sums of a head's queries and of its keys, [sum, token].

        Raises ``ModelError`` where they cannot be followed.
        """
        call = self._call(site)
        sides = (call.query, head, rows), (call.key, head // shared_by(call), keys)
        try:
            with self.model.threads(self.prepared):
                query, key = (summands_of(self.states, *side) for side in sides)
        except Lost as lost:
            raise ModelError(f"the scores of {self.model.name} cannot be explained: {lost}") from None
        return query, key

    def _call(self, site: Site) -> AttentionCall:
        """What a kernel received. Raises ``ModelError`` where its queries and keys are not known."""
        call = self.states.call(site)
        if call is None or call.query.shape[0] != 1:
            why = "its queries and keys are not known" if call is None else "it reads several texts at once"
            raise ModelError(f"the scores of {self.model.name} cannot be explained: {why}")
        return call

    def _measure(self, site: Site, head: int, cells: Cells) -> dict[str, float]:
        """The means of the cells' weights and scores, and of the steps between."""
        attention, call = self.states.attentions[site], self._call(site)
        unbiased = replace(call, biases=(), masks=(), diagonal=None)
        product = replace(unbiased, softcap=None)
        means = dict.fromkeys(
            ("weight", "score", "normalizer", "product", "capped", "bias", "bias_excess"), 0.0
        )
        for row, asked, other in zip(cells.rows.tolist(), cells.asked, cells.other, strict=True):
            one = row, row + 1, [head]
            weights = attention.rows(*one)[0, 0, 0].detach().double().cpu()
            scores, capped, plain = (
                ScoredRows(each).scores(*one)[0, 0, 0].double().cpu() for each in (call, unbiased, product)
            )
            unmasked = unmasked_keys(attention, row, head) & scores.isfinite()
            sinks = torch.tensor(sinks_of(call, head, row), dtype=scores.dtype)
            normalizer = torch.cat([scores[unmasked], sinks]).logsumexp(0)
            bias = torch.where(unmasked, scores - capped, 0)
            scores = torch.where(unmasked, scores, 0)
            of_row = weights, scores, normalizer.expand_as(scores), plain, capped, bias
            for name, each in zip(means, of_row, strict=False):
                means[name] += float(asked @ each)
            means["bias_excess"] += float((asked - other) @ bias)
        return means


def unmasked_keys(attention: Attention, row: int, head: int) -> Tensor:
    """The unmasked keys of a row, bool.  -> [key]"""
    allowed = attention.allowed(row, row + 1)[0]
    return allowed[head if len(allowed) > 1 else 0, 0].cpu()


def shared_by(call: AttentionCall) -> int:
    """How many heads share a key."""
    return call.query.shape[1] // call.key.shape[1]


def scale_of(call: AttentionCall, head: int) -> float:
    """The factor of a head's products."""
    scale = call.scale
    return float(scale.flatten()[head % scale.numel()] if isinstance(scale, Tensor) else scale)


def sinks_of(call: AttentionCall, head: int, row: int) -> list[float]:
    """The logit of a head's sink in a row, if it has one: of [head], or [batch, head, row, 1]."""
    sinks = call.sinks
    if sinks is None or sinks.ndim == 1:
        return [] if sinks is None else [float(sinks[head])]
    of_head = sinks[0, head % sinks.shape[1]]
    return [float(of_head[row % len(of_head), 0])]


def name_token(axis: Axis, place: int) -> str:
    """A token and its number."""
    token = axis[place]
    return str(place) if isinstance(token, int) else f"{visible(token.text.strip() or token.text)} {place}"
