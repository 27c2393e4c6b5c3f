"""What each part of a model writes to one score: its direct effect, the final norm's spread held.

nostalgebraist 2020; Elhage et al. 2021; Wang et al. 2022. The states at the end of a decoder are a sum: the
embeddings, what each head and each feed-forward part added, and biases. Behind the final norm, its spread
being that of this pass, each of them has a part in the score of a token, and the parts sum to the score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.attention import Attention, Head, Site
from attnscope.capture import recording
from attnscope.capture.hooks.modules import Call
from attnscope.capture.observer import quietly
from attnscope.capture.residuals import Residual, Residuals
from attnscope.capture.rows.proof import mix
from attnscope.errors import ModelError
from attnscope.models import Model, ModelInput
from attnscope.models.kinds import show_kinds
from attnscope.models.target import Prediction, place_prediction, score_prediction

EXACT = 1e-4
"""How far the parts may be from the score."""

NEAR = 1e-3
"""How far a norm may be from its formula, of its largest number."""


@dataclass(frozen=True)
class Writes:
    """The direct effects of all parts on one score, which they sum to.

    ``feed_forward`` is by layer. ``biases`` are those of the output projections and the final norm. ``rest``
    is the bias of the output head, but for rounding.
    """

    heads: Mapping[Head, float]
    feed_forward: Mapping[int, float]
    embeddings: float
    biases: float
    rest: float
    score: float
    title: str
    notes: tuple[str, ...]


def direct_effects(model: Model, prepared: ModelInput, target: str | None, against: str | None) -> Writes:
    """Run a causal model once, and say what each part writes to the score of ``target``, less ``against``'s.

    Raises ``ModelError`` for a model whose states are no plain sum that can be followed.
    """
    at = place_prediction(model, prepared, target)
    stream = _Stream(at=at)
    show_kinds(model.module, prepared)
    with (
        torch.enable_grad(),
        model.threads(prepared),
        stream.watching(model.module),
        recording(model.module, [stream], prepared.axes, warn=False) as record,
    ):
        prediction = score_prediction(model, prepared, target, against)
        layers = _layers(model, stream)
        given, normed, last = stream.last
        (slope,) = torch.autograd.grad(prediction.score, normed)
    with torch.no_grad():
        direction = slope[0, at].double()  # [width]
        scale, shift, centred = _spread(model, last, given[0, at], normed[0, at])

        def effect(part: Tensor) -> Tensor:
            """The part in the score.  [..., width] -> [...]"""
            part = part.double()
            part = part - part.mean(-1, keepdim=True) if centred else part
            return (part * scale) @ direction

        heads, feed_forward, biases = dict[Head, float](), dict[int, float](), float(shift @ direction)
        befores = [each.before[0, at] for _, each in layers]
        for (site, each), after in zip(layers, [*befores[1:], given[0, at]], strict=True):
            projection = stream.found[site]
            parts = torch.einsum("hs,hsw->hw", stream.mixed[site].double(), projection.weight.double())
            values = effect(parts).tolist()
            heads |= {Head(site.layer, head, site.kind): value for head, value in enumerate(values)}
            biases += 0.0 if projection.bias is None else float(effect(projection.bias))
            feed_forward[site.layer] = float(effect(after - each.total[0, at]))
        embeddings = float(effect(befores[0]))
    total = sum(heads.values()) + sum(feed_forward.values()) + embeddings + biases
    score = float(prediction.score.detach())
    _require_matrix(model, prediction, score - total, total)
    notes = (prediction.said, *model.notes, *prepared.notes, *record.notes)
    return Writes(heads, feed_forward, embeddings, biases, score - total, score, model.title, notes)


@dataclass(eq=False)
class _Stream(Residuals):
    """Also keeps what the heads mixed at one row, and the last norm that ran."""

    at: int = 0
    mixed: dict[Site, Tensor] = field(default_factory=dict)  # [head, size]
    norms: list[tuple[Tensor, Tensor, Call]] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        """Keep one row, and look for the projection."""
        if attention.values is not None and attention.batch == 1:
            rows = attention.rows(self.at, self.at + 1)
            self.mixed[attention.site] = mix(rows, attention.values)[0, :, 0]
        super().observe(attention)

    @property
    def last(self) -> tuple[Tensor, Tensor, Call]:
        """What went into the last norm of the pass behind all attention, what came out, and its call."""
        return self.norms[-1]

    def _leave(self, call: Call, output: object) -> None:
        super()._leave(call, output)
        weight, given = getattr(call.module, "weight", None), call.first
        if isinstance(weight, Tensor) and isinstance(output, Tensor) and given is not None:
            with quietly():
                if (
                    weight.ndim == 1
                    and given.ndim == 3
                    and given.shape == output.shape
                    and given.shape[-1:] == weight.shape
                ):
                    self.norms = [(given, output, call)]


def _layers(model: Model, stream: _Stream) -> list[tuple[Site, Residual]]:
    """The attention calls in their order. Raises ``ModelError`` unless all only add to the states."""
    layers = []
    for site in stream.sites:
        residual = stream.of(site)
        adds = residual is not None and residual.scale is None and site in stream.mixed
        if residual is None or not adds or site.kind != "decoder":
            raise ModelError(
                f"what the heads of {model.name} write cannot be followed: layer {site.layer} does not "
                "just add its attention to its input; --weigh norm and attnscope flow do without"
            )
        layers.append((site, residual))
    if not stream.norms:
        raise ModelError(f"what the heads of {model.name} write cannot be followed: it has no final norm")
    return layers


def _spread(model: Model, call: Call, given: Tensor, normed: Tensor) -> tuple[Tensor, Tensor, bool]:
    """A norm at one row: the factor of each number, what it adds, and whether it takes the mean away."""
    weight, bias = getattr(call.module, "weight", given).double(), getattr(call.module, "bias", None)
    given, normed = given.double(), normed.double()
    eps = getattr(call.module, "eps", 1e-5)
    shift = bias.double() if isinstance(bias, Tensor) else torch.zeros_like(given)
    near = NEAR * float(normed.abs().amax())
    if isinstance(eps, float):
        made = F.layer_norm(given, given.shape, weight, shift, eps)
        if float((made - normed).abs().amax()) <= near:
            return weight / torch.sqrt(given.var(unbiased=False) + eps), shift, True
    spread = torch.sqrt(given.square().mean() + 1e-6)
    for factor in (weight, 1 + weight):
        if float((given * factor / spread - normed).abs().amax()) <= near:
            return torch.where(given != 0, normed / given, factor / spread), torch.zeros_like(given), False
    raise ModelError(f"what the heads of {model.name} write cannot be followed: its final norm is not known")


def _require_matrix(model: Model, prediction: Prediction, rest: float, total: float) -> None:
    """Raise ``ModelError`` unless the parts leave no more of the score than a bias of the output head."""
    near = EXACT * max(1.0, abs(total), abs(total + rest))
    if abs(rest) <= near:
        return
    for module in {model.module, getattr(model, "writer", None) or model.module}:
        for bias in (each.detach() for each in module.parameters()):
            if bias.ndim == 1 and len(bias) > prediction.chosen:
                other = 0.0 if prediction.against is None else float(bias[prediction.against])
                if abs(float(bias[prediction.chosen]) - other - rest) <= near:
                    return
    raise ModelError(
        f"what the heads of {model.name} write cannot be followed: its output head is more than a matrix"
    )
