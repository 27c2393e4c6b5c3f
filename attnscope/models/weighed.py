"""A model whose attention is weighed by what it moves: every command looks at it as at any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnscope.attention import Attention
from attnscope.capture.projections import Projections
from attnscope.errors import InputError, ModelError
from attnscope.figures import Weigh
from attnscope.measures.weighing import WEIGHINGS, Values, WeighedRows, by_norm
from attnscope.models.file import FileModel
from attnscope.models.inputs import ModelInput, Objective
from attnscope.models.model import Model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from attnscope.capture import Observer, Record
    from attnscope.fused.fused_pass import FusedPass


class WeighedModel(Model):
    """Another model, each weight of which is the share of its row that it moves.

    A pass runs twice: once to find the output projections, and once to be looked at. ``title`` names the
    weighing, and the notes say what a cell holds.
    """

    def __init__(self, model: Model, weigh: Weigh) -> None:
        if isinstance(model, FileModel):
            raise ModelError(
                f"{model.name} is {model.what} and keeps no values: give the model itself for --weigh {weigh}"
            )
        notes = (*model.notes, f"weighed: a cell is the share {WEIGHINGS[weigh].share}")
        super().__init__(model.name, model.module, model.positions, notes)
        self.model, self.weigh, self.stateless = model, weigh, model.stateless
        self._without = False  # whether a pass had no output projection somewhere

    @property
    def title(self) -> str:
        """The model's, and how it is weighed."""
        without = ", without output projection" if self._without else ""
        return f"{self.model.title} · weighed by {self.weigh}{without}"

    def run(
        self, prepared: ModelInput, observers: Sequence[Observer], fused: FusedPass | None = None
    ) -> Record:
        """One pass that is looked at, and one before it; nothing is fused, whose figures are of the weights.

        What was kept of a pass runs again. Raises ``ModelError`` where the values of a call cannot be seen.
        """
        prepared = replace(prepared, replay=None, figures=None)
        projections = Projections()
        with projections.watching(self.module):
            self.model.run(prepared, [projections])
        record = self.model.run(prepared, [_Weighed(self, projections, observers)])
        without = {site.layer for site in projections.sites if site not in projections.found}
        self._without = self._without or bool(without)
        if without:
            layers = ", ".join(map(str, sorted(without)))
            record.note_change(f"no output projection was found in layer {layers}: it is left out there")
        return record

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """As the model does."""
        return self.model.prepare(text, second, max_tokens=max_tokens, truncate=truncate)

    def prepare_all(
        self, texts: Sequence[tuple[str, ...]], *, max_tokens: int | None = None, truncate: bool = False
    ) -> list[ModelInput | InputError]:
        """As the model does."""
        return self.model.prepare_all(texts, max_tokens=max_tokens, truncate=truncate)

    def prepare_chat(self, text: str, **how: Any) -> ModelInput:
        """As the model does."""
        return self.model.prepare_chat(text, **how)

    def prepare_image(self, path: Path, text: str | None = None) -> ModelInput:
        """As the model does."""
        return self.model.prepare_image(path, text)

    def generate(
        self, prepared: ModelInput, count: int, *, temperature: float = 0.0, seed: int = 0
    ) -> ModelInput:
        """As the model does; what it wrote is read again in one pass."""
        return self.model.generate(prepared, count, temperature=temperature, seed=seed)

    @property
    def objective(self) -> Objective:
        """The model's."""
        return self.model.objective

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """The model's.  [target], [target] -> [target, vocabulary]"""
        return self.model.logits(prepared, copies, at)


@dataclass(frozen=True, eq=False)
class _Weighed:
    """An observer that shows each call to others, weighed."""

    model: WeighedModel
    projections: Projections
    observers: Sequence[Observer]

    def observe(self, attention: Attention) -> None:
        """Show one call. Raises ``ModelError`` if its values are not known."""
        found = self.projections.found.get(attention.site)
        values = Values.of(self._values(attention), attention.heads, None if found is None else found.weight)
        read = WeighedRows(attention.read, by_norm(values))
        weighed = replace(attention, read=read, statistics=None)
        for observer in self.observers:
            observer.observe(weighed)

    def _values(self, attention: Attention) -> Tensor:
        """-> [batch, key_head, key, size]"""
        values, name = attention.values, self.model.name
        if values is None:
            raise ModelError(
                f"layer {attention.site.layer} of {name} cannot be weighed: its weights were seen, and the "
                "values that they mix were not; leave out --weigh"
            )
        return values
