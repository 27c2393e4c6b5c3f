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
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Axis, Head, Kind, Site, Token
from attnscope.capture import Observer, Record, recording
from attnscope.capture.hooks.gate import Edit, Gates, edited
from attnscope.errors import ModelError
from attnscope.figures import Figure, Importance
from attnscope.measures.sums import Sums
from attnscope.models import Model, ModelInput
from attnscope.models.targets import PredictionBatch, batch_predictions

Labels = Mapping[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]]


class HeadSums:
    """Sums over texts for one figure of each head, which is averaged as ``measures.sums`` says."""

    def __init__(self) -> None:
        self.heads: dict[Head, Sums] = {}

    def add_texts(self, rows: Tensor, values: Mapping[Head, Tensor], baseline: Tensor) -> None:
        """Add some texts, of which those without rows do not count.  [text], by head [text]"""
        for head, each in values.items():
            sums = torch.stack([rows, each, baseline])[:, None, :, None]  # [sum, measure, text, head]
            self._add(head, Sums.of_texts(sums, torch.zeros_like(sums)))

    def merge(self, other: HeadSums) -> None:
        """Add another one's sums."""
        for head, sums in other.heads.items():
            self._add(head, sums)

    def _add(self, head: Head, sums: Sums) -> None:
        self.heads[head] = self.heads[head] + sums if head in self.heads else sums

    def averages(self) -> dict[Head, Figure]:
        """The figure of each head that has one."""
        found = ((head, sums.figures()[0][0]) for head, sums in self.heads.items())
        return {head: figure for head, figure in found if figure is not None}

    def state(self) -> list[Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        return [{"head": asdict(head), "sums": sums.state()} for head, sums in self.heads.items()]

    @classmethod
    def from_state(cls, state: Sequence[Mapping[str, Any]]) -> Any:
        """What ``state`` saved. Raises ``ValueError`` or ``TypeError`` for anything else."""
        made = cls()
        made.heads = {Head(**entry["head"]): Sums.from_state(entry["sums"]) for entry in state}
        if any(sums.numbers.shape[1:] != (1, 1) for sums in made.heads.values()):
            raise ValueError("these are not sums over texts")
        return made


class Importances(HeadSums):
    """Sums the importance of every head, text by text."""

    def add(self, model: Model, prepared: ModelInput, labels: Labels) -> None:
        """Add a batch of texts of one length; ``labels`` are their tokens by kind of attention.

        Raises ``ModelError`` for a model without an output head or with heads that cannot be gated, and
        ``InputError`` for a text with nothing to predict.
        """
        texts = predicted_side(labels)
        total: dict[Head, Tensor] = {}  # [text]
        copies = torch.zeros(len(texts), dtype=torch.float64)
        for predictions in batch_predictions(model, prepared, texts):
            rows = torch.tensor(predictions.texts)
            copies.index_add_(0, rows, torch.ones(len(rows), dtype=torch.float64))
            for site, slopes in _slopes(model, predictions).items():
                for number, each in enumerate(slopes.abs().double().cpu().T):
                    sums = total.setdefault(Head(site.layer, number, site.kind), torch.zeros_like(copies))
                    sums.index_add_(0, rows, each)
        asked = (copies > 0).double()
        means = {head: sums / copies.clamp(min=1) for head, sums in total.items()}
        self.add_texts(asked, means, torch.zeros_like(asked))

    def figures(self) -> dict[Head, Importance]:
        """By head."""
        return {
            head: Importance(each.value, each.texts, each.error) for head, each in self.averages().items()
        }


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
