"""How much predictions depend on each head: the gradient of the loss at a gate on the head's output.

Michel et al. 2019, Are Sixteen Heads Really Better than One?, section 4.1: the importance of head h is
``E_x |∂L(x)/∂ξ_h|`` with a gate ``ξ_h = 1`` on the head's output. An ``x`` is one model input: for a
causal model a text, for a masked model a copy with every seventh token masked; ``L(x)`` is the mean
cross-entropy of its predictions in nats. Copies of one text are averaged first, and texts count equally.
The figures are not normalised by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnscope.attention import Axis, Head, Kind, Site, Token
from attnscope.capture import Observer, Record, recording
from attnscope.capture.hooks.gate import Edit, Gates, edited
from attnscope.errors import ModelError
from attnscope.figures import Importance
from attnscope.models import Model, ModelInput
from attnscope.models.targets import PredictionBatch, batch_predictions

Labels = Mapping[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]]


class HeadSums:
    """Sums over texts, in float64: ``totals`` (the number of texts first), and sums per head."""

    sizes: ClassVar[tuple[int, int]]  # numbers of the totals, and of each head

    def __init__(self) -> None:
        self.totals = torch.zeros(self.sizes[0], dtype=torch.float64)
        self.heads: dict[Head, Tensor] = {}

    @property
    def texts(self) -> int:
        """How many texts were added."""
        return int(self.totals[0])

    def increase(self, totals: Tensor, heads: Mapping[Head, Tensor]) -> None:
        """Add some sums."""
        self.totals = self.totals + totals
        for head, sums in heads.items():
            self.heads[head] = self.heads[head] + sums if head in self.heads else sums

    def merge(self, other: HeadSums) -> None:
        """Add another one's sums."""
        self.increase(other.totals, other.heads)

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        heads = [{"head": asdict(head), "sums": sums.tolist()} for head, sums in self.heads.items()]
        return {"totals": self.totals.tolist(), "heads": heads}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Any:
        """What ``state`` saved. Raises ``ValueError`` or ``TypeError`` for anything else."""
        made = cls()
        made.totals = torch.tensor(state["totals"], dtype=torch.float64)
        made.heads = {
            Head(**entry["head"]): torch.tensor(entry["sums"], dtype=torch.float64)
            for entry in state["heads"]
        }
        sizes = [len(made.totals), *(len(sums) for sums in made.heads.values())]
        if sizes != [cls.sizes[0], *([cls.sizes[1]] * len(made.heads))] or not made.totals[0] >= 0:
            raise ValueError("these are not sums over texts")
        return made


class Importances(HeadSums):
    """Sums the importance of every head, and its square, text by text."""

    sizes = 1, 2

    def add(self, model: Model, prepared: ModelInput, labels: Labels) -> None:
        """Add a batch of texts of one length; ``labels`` are their tokens by kind of attention.

        Raises ``ModelError`` for a model without an output head or with heads that cannot be gated, and
        ``InputError`` for a text with nothing to predict.
        """
        texts = predicted_side(labels)
        total: dict[Site, Tensor] = {}
        copies = torch.zeros(len(texts), dtype=torch.float64)
        for predictions in batch_predictions(model, prepared, texts):
            rows = torch.tensor(predictions.texts)
            copies.index_add_(0, rows, torch.ones(len(rows), dtype=torch.float64))
            for site, slopes in _slopes(model, predictions).items():
                sums = total.setdefault(site, torch.zeros(len(texts), slopes.shape[1], dtype=torch.float64))
                sums.index_add_(0, rows, slopes.abs().double().cpu())
        asked = copies > 0
        for site, sums in total.items():
            values = sums[asked] / copies[asked, None]  # [text, head]
            both = torch.stack([values.sum(0), values.square().sum(0)], 1)  # [head, value | square]
            heads = {Head(site.layer, head, site.kind): each for head, each in enumerate(both)}
            self.increase(torch.zeros(1), heads)
        self.increase(asked.sum(), {})

    def figures(self) -> dict[Head, Importance]:
        """By head."""
        made = {}
        for head, (total, squares) in ((head, sums.tolist()) for head, sums in self.heads.items()):
            mean, error = total / self.texts, None
            if self.texts > 1:
                variance = max(0.0, squares - self.texts * mean**2) / (self.texts - 1)
                error = (variance / self.texts) ** 0.5
            made[head] = Importance(mean, self.texts, error)
        return made


def predicted_side(labels: Labels) -> Sequence[Sequence[Token]]:
    """The tokens that a model predicts: those of a decoder, if there is one."""
    return labels["decoder"][0] if "decoder" in labels else labels["encoder"][0]


@contextmanager
def editing(
    model: Model,
    edit: Edit,
    axes: Mapping[Kind, tuple[Axis, Axis]] | None = None,
    observers: Sequence[Observer] = (),
) -> Iterator[tuple[Record, Gates]]:
    """Edit heads' outputs while the block runs. Raises ``ModelError`` unless every head was edited."""
    with recording(model.module, observers, axes, warn=False) as record, edited(edit) as gates:
        yield record, gates
    heads = [site.heads for site in record.sites]
    if not heads:
        raise ModelError(f"{model.name} has no attention, and so no heads")
    if heads != gates.heads:
        ways = ", ".join(dict.fromkeys(site.kernel for site in record.sites))
        raise ModelError(
            f"the heads of {model.name} cannot be gated: it attends by {ways}, and gates fit torch's "
            "scaled_dot_product_attention and nn.MultiheadAttention, and the attention functions of "
            "transformers"
        )


def _slopes(model: Model, predictions: PredictionBatch) -> dict[Site, Tensor]:
    """The gradient of every copy's loss at each head's gate.  -> by site [copy, head]"""
    gates: list[Tensor] = []

    def gate(number: int, output: Tensor) -> Tensor:
        gates.append(torch.ones(len(predictions.texts), output.shape[2], requires_grad=True))
        return output * gates[-1].to(output)[:, None, :, None]

    with torch.enable_grad(), model.threads(predictions.prepared):
        with editing(model, gate) as (record, _):
            losses = predictions.losses(model)  # [target]
        copies = torch.tensor([target.copy for target in predictions.targets])
        counts = torch.bincount(copies, minlength=len(predictions.texts))
        loss = (losses / counts[copies].to(losses)).sum()  # the sum over copies of each one's mean
        slopes = torch.autograd.grad(loss, gates)
    return {each.site: slope for each, slope in zip(record.sites, slopes, strict=True)}
