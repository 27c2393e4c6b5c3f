"""Which model, and how it is loaded."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from attnscope.cli.options.complete import complete_model
from attnscope.cli.options.declare import MODEL, WHERE, flag, option
from attnscope.figures import Weigh

Said: TypeAlias = dict[str, Any]
"""What JSON says of all its numbers."""


def _stay_offline(asked: bool) -> bool:
    if asked:
        from attnscope.offline import close_network

        close_network()
    return asked


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """A model's name, and what may be done to load it."""

    model: str | None = option(
        "own (the default), own-causal, a folder, a Hugging Face hub id, or FILE.py:NAME (runs that file).",
        "--model",
        "-m",
        complete=complete_model,
    )
    tokenizer: str = option(
        "For FILE.py:NAME: the model whose tokenizer to use, or its folder.", panel=MODEL, default="own"
    )
    device: str = option("auto, cpu, cuda or mps.", panel=MODEL, default="auto")
    device_map: str | None = option(
        "auto: spread a model too large for one device over all there are; needs accelerate.", panel=MODEL
    )
    dtype: str = option("auto, float32, float16 or bfloat16.", panel=MODEL, default="auto")
    revision: str | None = option("Branch, tag or commit on the hub.", panel=MODEL)
    trust_remote_code: bool = flag(
        "Run Python code that comes with the model. It can do anything you can.", panel=MODEL
    )
    allow_pickle: bool = flag("Load pickled weights where there are no safetensors.", panel=MODEL)
    offline: bool = flag(
        "Use models that are already here; nothing goes to the network.", panel=MODEL, callback=_stay_offline
    )

    @property
    def name(self) -> str:
        """The model that is meant."""
        return "own" if self.model is None else self.model


@dataclass(frozen=True, kw_only=True)
class WeighedModelOptions(ModelOptions):
    """Which model, and what its attention is weighed by."""

    weigh: Weigh = option(
        "A cell is the weight itself (raw), or its share in what the head adds (norm), in the same with the "
        "residual and behind the layer norm (norm-residual), in how far it turns without the key (zeroing), "
        "or in what raises a prediction (gradient); stats --explain says more.",
        panel=WHERE,
        default="raw",
    )
    target: str | None = option(
        "With --weigh gradient or --writes: the prediction, a word at the end of the text, the number of a "
        "token, or a classifier's class (of a token: CLASS@TOKEN); the likeliest if not given.",
        panel=WHERE,
    )

    @property
    def said(self) -> Said:
        """What JSON says of it: nothing of the weights themselves."""
        target = {} if self.target is None else {"target": self.target}
        return {} if self.weigh == "raw" else {"weigh": self.weigh, **target}
