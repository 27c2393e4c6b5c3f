"""Attention weighted by its effect: a model whose passes observers see weighted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.attention import Attention, Site
from attnscope.capture import recording
from attnscope.capture.placing.split_heads import require_whole_heads
from attnscope.capture.projections import Projection, Projections, Residual, Residuals, head_gradients
from attnscope.capture.record import FunctionObserver
from attnscope.errors import ModelError
from attnscope.measures.weighting import (
    WEIGHTINGS,
    Values,
    WeightedRows,
    by_block_norm,
    by_gradient,
    by_norm,
    by_zeroing,
    normed,
    residual_part,
    spread_rows,
)
from attnscope.models.inputs import ModelInput
from attnscope.models.model import Model
from attnscope.models.targets import score_prediction
from attnscope.models.trace_model import TracedModel
from attnscope.scores import Weighting

if TYPE_CHECKING:
    from attnscope.capture import Observer, Record


def with_weighting(model: Model, weighting: Weighting, target: str | None = None) -> Model:
    """The same model, each weight its share of the row's effect, by gradient on ``target``."""
    if isinstance(model, TracedModel):
        raise ModelError(
            f"{model.name} is {model.what} and has no values: give the model for --weighting {weighting}"
        )
    require_whole_heads(model.module, f"{weighting} needs the output projection of all")
    weighted = copy(model)
    weighted.notes = (*model.notes, f"weighted: a cell is the share {WEIGHTINGS[weighting].share}")
    weighted.weighting, weighted.weighted_pass = weighting, WeightedPass(model, weighting, target)
    return weighted


@dataclass(frozen=True, eq=False)
class WeightedPass:
    """Runs ``model`` twice: to find the output projections, and so that observers see weighted rows."""

    model: Model
    weighting: Weighting
    target: str | None
    without: dict[Site, bool] = field(default_factory=dict)  # where no output projection was found
    forms: dict[str, None] = field(default_factory=dict)  # where norms were found, over all calls

    def __str__(self) -> str:
        parts = [f"weighted by {self.weighting}", *self.forms]
        if any(self.without.values()):
            some = "" if all(self.without.values()) else " in some layers"
            parts.append(f"without output projection{some}")
        return ", ".join(parts)

    def run(self, prepared: ModelInput, observers: Sequence[Observer]) -> Record:
        """One pass to prepare, and one for the observers. The fused pass measures plain weights only: off.

        A kept pass runs again. Raises ``ModelError`` if a call's values cannot be seen.
        """
        prepared = replace(prepared, replay=None, scores=None, words=(), array_replay=None)
        projections: Projections = Residuals() if self.weighting == "norm-residual" else Projections()
        slopes, prediction = dict[Site, Tensor](), ""
        if self.weighting == "gradient":
            slopes, prediction = gradients_of(self.model, prepared, self.target, projections)
        else:
            with projections.watching(self.model.module):
                self.model.run(prepared, [projections])

        def show(attention: Attention) -> None:
            weighted = replace(
                attention, read=self._weighted_rows(attention, projections, slopes), statistics=None
            )
            for observer in observers:
                observer.observe(weighted)

        record = self.model.run(prepared, [FunctionObserver(show)])
        if prediction:
            record.note_change(prediction)
        without = {site.layer for site in projections.sites if site not in projections.by_site}
        self.without.update({site: site not in projections.by_site for site in projections.sites})
        if without:
            layers = ", ".join(map(str, sorted(without)))
            record.note_change(f"no output projection was found in layer {layers}: it is left out there")
        return record

    def _weighted_rows(
        self, attention: Attention, projections: Projections, slopes: Mapping[Site, Tensor]
    ) -> WeightedRows:
        """The weighted rows of a call. Raises ``ModelError`` if its values are not known."""
        projection, weighting = projections.by_site.get(attention.site), self.weighting
        if attention.values is None:
            why = "its weights were seen, and the values that they mix were not; leave out --weighting"
            raise self._refusal(attention, f": {why}")
        if weighting == "norm-residual":
            assert isinstance(projections, Residuals)
            return self._with_residual(
                attention, attention.values, projection, projections.residual_at(attention.site)
            )
        weight = None if projection is None else projection.weight
        values = Values.from_projection(attention.values, attention.heads, weight)
        if weighting == "norm":
            return WeightedRows(attention.read, by_norm(values))
        if weighting == "zeroing":
            return WeightedRows(attention.read, by_zeroing(values), may_be_none=True)
        if projection is None:
            why = "no output projection was found to take it through; --weighting norm needs none"
            raise self._refusal(attention, f" by gradient: {why}")
        slope = slopes.get(attention.site)
        if slope is None:  # the prediction does not depend on it
            shape = (len(values.values), attention.heads, len(attention.queries), values.values.shape[-1])
            slope = values.values.new_zeros(shape)  # [batch, head, query, size]
        return WeightedRows(attention.read, by_gradient(values, slope), may_be_none=True)

    def _with_residual(
        self, attention: Attention, values: Tensor, projection: Projection | None, residual: Residual | None
    ) -> WeightedRows:
        """Raises ``ModelError`` if the block around the attention cannot be followed."""
        site, why = attention.site, ""
        if projection is None:
            why = "its output projection was not found"
        elif residual is None:
            why = "what its output is added to was not found"
        elif residual.before.shape[:2] != (attention.batch, len(attention.queries)):
            why = f"it attends in {attention.batch:,} parts"
        elif site.kind != "cross" and len(attention.queries) != len(attention.keys):
            why = f"its {len(attention.queries):,} queries are not its {len(attention.keys):,} keys"
        if projection is None or residual is None or why:
            raise self._refusal(attention, f" by norm-residual, as {why}: --weighting norm does without")
        self.forms[residual.form] = None
        weight = normed(projection.weight.double(), residual)
        part = residual_part(residual, attention.heads)
        weighted = Values.from_projection(values, attention.heads, weight)
        if attention.site.kind == "cross":  # the residual belongs to no token that is attended to
            amounts, beside = by_norm(weighted), part.norm(dim=-1)[:, None, :, None]
        else:
            amounts, beside = by_block_norm(weighted, weight, part), None
        if residual.inner is not None:
            amounts = spread_rows(amounts, residual.inner)
        return WeightedRows(attention.read, amounts, beside=beside)

    def _refusal(self, attention: Attention, why: str) -> ModelError:
        return ModelError(f"layer {attention.site.layer} of {self.model.name} cannot be weighted{why}")


def gradients_of(
    model: Model, prepared: ModelInput, target: str | None, projections: Projections | None = None
) -> tuple[dict[Site, Tensor], str]:
    """The gradient of a prediction with respect to each head's output, by site; and the prediction in words.

    One pass forward and one backward, in which ``projections`` records what it needs.  -> [batch, head,
    query, size]
    """
    projections = projections or Projections()
    model.learn_kinds(prepared)
    with (
        torch.enable_grad(),
        model.threads(prepared),
        projections.watching(model.module),
        recording(model.module, [projections], prepared.labels, warn=False),
    ):
        prediction = score_prediction(model, prepared, target)
        return head_gradients(projections, prediction.score), prediction.description
