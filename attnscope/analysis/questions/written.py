"""What each token that a model wrote looks at, by parts of the text, and each head's lookback ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnscope.analysis.questions.cut import Span
from attnscope.analysis.questions.spans import span_maps
from attnscope.analysis.selection import Selection
from attnscope.attention import Head
from attnscope.axes import Array, visible
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.views.charts.stack import Stack


@dataclass(frozen=True, eq=False)
class Looks:
    """How much each written token looks at each part, the last part being what was written.

    ``shares`` is ``[head, token, part]``; ``lookback`` is a head's mean over the written tokens of
    ``c / (c + w)``, with the mean weight ``c`` on a token of the text and ``w`` on one that was written, the
    token's own included (Chuang et al. 2024, Lookback Lens). Even attention has 0.5.
    """

    parts: tuple[str, ...]
    tokens: tuple[str, ...]
    heads: tuple[Head, ...]
    shares: Array
    lookback: Mapping[Head, float]
    title: str
    notes: tuple[str, ...]

    def stack(self, which: str) -> Stack:
        """The mean over the heads, a line for each written token."""
        best = sorted(self.lookback, key=lambda head: -self.lookback[head])
        ends = [f"{head.name} {self.lookback[head]:.2f}" for head in (*best[:3], *best[:-4:-1][::-1])]
        ratios = list(self.lookback.values())
        said = f"lookback ratio {sum(ratios) / len(ratios):.2f} on average, 0.5 is even"
        if len(best) > 6:
            said += f"; most {', '.join(ends[:3])}; least {', '.join(ends[3:])}"
        title = f"{which} · what each written token looks at"
        return Stack(self.parts, self.tokens, self.shares.mean(0), title, self.title, (said, *self.notes))


def written_looks(
    model: Model,
    prepared: ModelInput,
    spans: Sequence[Span],
    selection: Selection | None = None,
    *,
    exact_kernel: bool = False,
) -> Looks:
    """Run the model once, and measure what each token of the last part looks at.

    Raises ``InputError`` if nothing was written.
    """
    text, last = spans[:-1], spans[-1]
    if not text or prepared.written is None or last.start < prepared.written:
        raise InputError("the model wrote nothing: give it a text that does not end, or another model")
    singly = [Span(f"{number}", number, number + 1) for number in range(last.start, last.stop)]
    result = span_maps(model, prepared, (*text, *singly), selection, exact_kernel=exact_kernel)
    rows = result.weights[:, len(text) :]  # [head, token, part]
    new = rows[..., len(text) :].sum(-1, keepdims=True)
    shares = np.concatenate([rows[..., : len(text)], new], -1)
    return Looks(
        (*(span.name for span in text), last.name),
        tuple(visible(token.text.strip()) for token in prepared.tokens[last.start : last.stop]),
        result.heads,
        shares,
        dict(zip(result.heads, _lookback(shares, last.start).tolist(), strict=True)),
        result.title,
        (result.ran, *result.notes),
    )


def _lookback(shares: Array, context: int) -> Array:
    """The lookback ratio of each head; ``context`` tokens stand before those that were written.

    [head, token, part] -> [head]
    """
    new = np.arange(1, shares.shape[1] + 1)  # written tokens that each row may look at
    old, late = shares[..., :-1].sum(-1) / context, shares[..., -1] / new
    ratio: Array = (old / np.maximum(old + late, np.finfo(float).tiny)).mean(-1)
    return ratio
