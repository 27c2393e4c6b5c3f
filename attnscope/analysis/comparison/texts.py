"""The same model on two texts, most of all on a minimal pair: what changes in which head."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnscope.analysis.comparison.compare import note_certainty
from attnscope.analysis.comparison.head_rows import head_rows, map_of_nats
from attnscope.analysis.comparison.partners import by_place, paired_rows, pairing, texts
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import kind_title, name_pass, provenance, quote_text, require_selected
from attnscope.attention import Axis, Head
from attnscope.capture.observers.sample import Sample
from attnscope.capture.observers.shared_rows import SharedRows
from attnscope.comparison import align, divergence, sampling_error
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.views import HeadMap, Heatmap, heatmap
from attnscope.views.aligned import AlignedTexts, Step, joint_difference

LARGEST = 1024
"""Tokens that a difference map shows at most."""


@dataclass(frozen=True, eq=False)
class TextComparison:
    """What changes in every head from one text to the other.

    ``change`` is the Jensen-Shannon divergence (nats) between the rows of tokens that belong together,
    averaged over those tokens; the attention to tokens without a partner counts as that to one more key.
    ``error`` is its standard error where rows were sampled. ``difference`` is the second text's map minus
    the first one's, of the head that was chosen.
    """

    kind: str
    heads: tuple[Head, ...]
    change: NDArray[np.float64]  # [head]
    error: NDArray[np.float64]  # [head]
    aligned: AlignedTexts
    view: HeadMap
    difference: Heatmap | None
    notes: tuple[str, ...]

    @property
    def ranking(self) -> tuple[int, ...]:
        """The numbers of all heads in ``heads``, the one that changes most first."""
        return tuple(int(head) for head in np.argsort(-self.change, kind="stable"))


def compare_texts(
    model: Model, prepared: ModelInput, other: ModelInput, selection: Selection | None = None
) -> TextComparison:
    """Run the model once on each text, and compare what its heads do on the tokens that both have.

    As many tokens in the place of as many others are compared with those. ``layers`` of the selection leaves
    their heads; with a ``head``, all heads stay and the difference map of that one is added. Raises
    ``InputError`` for texts that share no token, ``SelectionError`` for what does not exist.
    """
    selection = selection or Selection()
    every = replace(selection, head=None)
    pairs = pairing(prepared, other, by_place(selection))
    results, chosen = [], []
    for side, text in enumerate((prepared, other)):
        whole = Sample(paired_rows(pairs, side, LARGEST * LARGEST))
        beside = [SharedRows([whole], selection.heads)] if selection.head is not None else []
        results.append(head_rows(model, text, every, paired_rows(pairs, side), beside=beside))
        chosen += [
            kept.values[0, 0].cpu().numpy() for kept in whole.maps if kept.site.kind == results[0].kind
        ]
    one, two = results
    asked = [site for site in one.sites if selection.heads(site.site, site.heads)]
    require_selected(asked, one.record, selection)
    apart = divergence(one.rows, two.rows)  # [head, row]
    count = len(pairs(one.kind)[0])
    error = np.array([sampling_error(head, count) for head in apart])
    change = apart.double().mean(1).numpy()
    queries, keys = (
        _steps(*axes, selection) for axes in zip(prepared.axes[one.kind], other.axes[one.kind], strict=True)
    )
    notes = (
        *model.notes,
        *prepared.notes,
        *other.notes,
        *one.notes,
        *note_certainty(apart.shape[1], count, error),
    )
    notes = tuple(dict.fromkeys(notes))
    named = f"{quote_text(other)} minus {quote_text(prepared)}"
    return TextComparison(
        kind=one.kind,
        heads=one.heads,
        change=change,
        error=error,
        aligned=AlignedTexts(queries, title=f"{model.title} · {kind_title(one.kind)} · two texts"),
        view=map_of_nats(
            one.heads,
            change,
            "change",
            title=f"how much each head changes · {name_pass(model, prepared)} and {quote_text(other)}",
            subtitle=provenance(one.sites),
            notes=notes,
        ),
        difference=_difference(chosen, queries, keys, selection, model, named) if chosen else None,
        notes=notes,
    )


def _steps(one: Axis, other: Axis, selection: Selection) -> tuple[Step, ...]:
    """Two axes as places that belong together."""
    mine, theirs = selection.coarsening(one), selection.coarsening(other)
    return tuple(
        (None if i is None else mine.places[i], None if j is None else theirs.places[j])
        for i, j in align(texts(mine), texts(theirs)).steps
    )


def _difference(
    chosen: list[NDArray[np.float32]],
    queries: tuple[Step, ...],
    keys: tuple[Step, ...],
    selection: Selection,
    model: Model,
    named: str,
) -> Heatmap:
    """The map of one head, the second text's minus the first one's, which is ``named``."""
    if len(queries) > LARGEST:
        raise InputError(
            f"a difference map shows at most {LARGEST:,} tokens, and these texts have {len(queries):,}: "
            "cut them with --max-tokens"
        )
    assert selection.head is not None
    title = f"{selection.head.name} · {model.title} · the second text minus the first"
    return heatmap(
        joint_difference((chosen[0], chosen[1]), queries, keys),
        title=title,
        subtitle=named,
        scale="head",
        signed=True,
    )
