"""What a model's loss becomes when each head is taken away, one at a time, over many texts.

The loss is the cross-entropy of a prediction in nats: a causal model predicts each next token, a masked one
each token, hidden in turns. A head's output is set to zero, or to its mean over the rows of many texts. The
layers before the head are computed once a batch, for all heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.analysis.corpus.batches import batches
from attnscope.analysis.intervention.importance import Labels, gated_sites, predicted_side
from attnscope.analysis.intervention.prefix import KeptLayers
from attnscope.analysis.selection import Selection
from attnscope.attention import Head, Site
from attnscope.capture import recording
from attnscope.capture.hooks.gate import edited, replaced
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.models.predictions import PredictionBatch, batch_predictions
from attnscope.storage.corpus import Entry

Means: TypeAlias = Mapping[Site, Tensor]
"""The mean output of the heads of a site: [head, size]."""

Way: TypeAlias = Literal["zero", "mean"]
"""What stands in the place of a head that is taken away."""

MEAN_TEXTS = 1000
"""Texts at the beginning of a corpus over whose rows a head's mean output is taken."""

NEAR = 1e-3
"""Nats by which a loss may differ when kept layers are given, not run: rounding is far below it."""


@dataclass(frozen=True, slots=True)
class Removal:
    """How much the loss rises without a head, over all predictions, and what it is then.

    ``error`` is the standard error of the rise over texts, ``None`` for a single text.
    """

    value: float
    texts: int
    error: float | None
    loss: float


class Removals:
    """Adds up the losses without each head, text by text. Sums are float64.

    ``means`` are what stands in the place of heads, by site [head, size]; zeros if there are none.
    """

    def __init__(self, means: Means | None = None) -> None:
        self.means = means
        self.texts, self.tokens, self.tokens_squared, self.loss = 0, 0.0, 0.0, 0.0
        self._sums: dict[Head, Tensor] = {}  # [rise | square | product with the tokens of its text]

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
        self.texts += int((tokens > 0).sum())
        self.tokens += float(tokens.sum())
        self.tokens_squared += float(tokens.square().sum())
        self.loss += float(plain.sum())
        for head, rise in rises.items():
            self._add(head, torch.stack([rise.sum(), rise.square().sum(), (rise * tokens).sum()]))

    def _losses(
        self, model: Model, predictions: PredictionBatch, selection: Selection
    ) -> tuple[Tensor, dict[Head, Tensor]]:
        """The loss of each prediction as it is, and without each head.  -> [target], by head [target]"""
        ids = predictions.target_ids

        def loss() -> Tensor:
            logits = predictions.logits(model)
            return F.cross_entropy(logits.float(), ids.to(logits.device), reduction="none").cpu().double()

        kept = KeptLayers(model.module)
        with (
            edited(lambda number, output: None) as gates,
            recording(model.module, warn=False) as record,
            kept.keeping(lambda: len(gates.heads)),
        ):
            before = loss()
        sites = gated_sites(model, record, gates)
        for call in range(len(sites)):
            if kept.skipped(call) > kept.skipped(call - 1):
                with kept.giving(call):
                    same = torch.allclose(loss(), before, atol=NEAR, rtol=0)
                if not same:
                    kept.ran.clear()  # layers keep something of a pass: all of them run anew for each head
        calls: dict[Head, list[int]] = {}
        for call, site in enumerate(sites):
            for head in selection.heads(site, gates.heads[call]) or ():
                calls.setdefault(Head(site.layer, head, site.kind), []).append(call)
        without = {}
        for address, mine in calls.items():
            skipped = kept.skipped(mine[0])
            values = {call - skipped: self._value(sites[call], address.head) for call in mine}
            with kept.giving(mine[0]), edited(replaced(address.head, values)):
                without[address] = loss()
        return before, without

    def _value(self, site: Site, head: int) -> Tensor | None:
        return None if self.means is None else self.means[site][head]

    def _add(self, head: Head, sums: Tensor) -> None:
        self._sums[head] = self._sums[head] + sums if head in self._sums else sums

    def merge(self, other: Removals) -> None:
        """Add what another one has seen."""
        for head, sums in other._sums.items():
            self._add(head, sums)
        self.texts += other.texts
        self.tokens += other.tokens
        self.tokens_squared += other.tokens_squared
        self.loss += other.loss

    def figures(self) -> dict[Head, Removal]:
        """By head; the error is that of a ratio of sums over texts, as in ``measures.sums.Sums.figures``."""
        return {head: self._figure(*sums.tolist()) for head, sums in self._sums.items() if self.tokens}

    def _figure(self, rise: float, squares: float, products: float) -> Removal:
        mean = rise / self.tokens
        spread = max(0.0, squares - 2 * mean * products + mean**2 * self.tokens_squared)
        error = None
        if self.texts > 1:
            error = (spread * self.texts / (self.texts - 1)) ** 0.5 / self.tokens
        return Removal(mean, self.texts, error, mean + self.loss / self.tokens)

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        heads = [{"head": asdict(head), "sums": sums.tolist()} for head, sums in self._sums.items()]
        totals = [self.tokens, self.tokens_squared, self.loss]
        return {"texts": self.texts, "totals": totals, "heads": heads}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Removals:
        """What ``state`` wrote down. Raises ``ValueError`` or ``TypeError`` if it never did."""
        made = cls()
        made.texts = state["texts"]
        if type(made.texts) is not int or made.texts < 0:
            raise ValueError(f"texts is {made.texts!r}")
        made.tokens, made.tokens_squared, made.loss = map(float, state["totals"])
        for entry in state["heads"]:
            sums = torch.tensor(entry["sums"], dtype=torch.float64)
            if sums.shape != (3,):
                raise ValueError("the sums of ablation are not three")
            made._sums[Head(**entry["head"])] = sums
        return made


def describe_way(way: Way | None) -> tuple[str, ...]:
    """What stands in the place of a head, in words; nothing where none was taken away."""
    if way is None:
        return ()
    mean = f"its mean over the rows of the first {MEAN_TEXTS:,} texts"
    return (f"ablation: a head's output is set to {'zero' if way == 'zero' else mean}",)


def corpus_means(
    model: Model, entries: Iterable[Entry], max_tokens: int | None, truncate: bool
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
                for site, (total, count) in _outputs(model, predictions).items():
                    sums[site] = sums[site] + total if site in sums else total
                    rows[site] = rows.get(site, 0) + count
    return {site: total / rows[site] for site, total in sums.items()}


def _outputs(model: Model, predictions: PredictionBatch) -> dict[Site, tuple[Tensor, int]]:
    """What every head gives in one pass: the sum over all rows [head, size], and how many these are."""
    outputs: list[tuple[Tensor, int]] = []

    def add(number: int, output: Tensor) -> None:
        outputs.append((output.sum((0, 1), dtype=torch.float32).cpu().double(), output[..., 0, 0].numel()))

    with (
        torch.no_grad(),
        model.threads(predictions.prepared),
        edited(add) as gates,
        recording(model.module, warn=False) as record,
    ):
        predictions.logits(model)
    return dict(zip(gated_sites(model, record, gates), outputs, strict=True))
