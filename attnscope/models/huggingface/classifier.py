"""A Hugging Face model that sorts texts, images, sounds or tokens into classes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnscope.errors import ModelError
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.inputs import ModelInput, Objective

AUTOMATIC = (
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForImageClassification",
)


def pick_classifier(config: Any) -> Any:
    """The automatic class of a model that was saved with a head for classes; ``None`` for any other."""
    import transformers

    saved = set(config.architectures or ())
    for name in AUTOMATIC:
        automatic = getattr(transformers, name)
        made = automatic._model_mapping.get(type(config), ())
        made = made if isinstance(made, tuple) else (made,)
        if saved & {each.__name__ for each in made} and not config.is_encoder_decoder:
            return automatic
    return None


class Classifier(HuggingFaceModel):
    """``writer`` is the model with the head that tells classes apart."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes as the folder names them."""
        named = getattr(self.module.config, "id2label", None) or {}
        count = int(getattr(self.module.config, "num_labels", len(named)))
        return tuple(str(named.get(number, number)) for number in range(count))

    def class_scores(self, prepared: ModelInput) -> Tensor:
        """One pass: the score of each class.  -> [text, class] or [text, token, class]"""
        scores: Tensor = self.writer(**prepared.inputs).logits
        return scores

    @property
    def objective(self) -> Objective:
        """Raises ``ModelError``: it predicts no tokens."""
        raise ModelError(f"{self.name} predicts no tokens: it has a head for {len(self.labels):,} classes")
