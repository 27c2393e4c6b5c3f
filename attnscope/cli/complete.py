"""What the shell offers when Tab is pressed: quickly, without torch, from what lies on the disk.

Typer knows the arguments of these functions by their names, ``ctx`` and ``incomplete``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, get_args

from attnscope.plugins import entry_points_of

Complete: TypeAlias = Callable[[Any, str], list[str]]
"""From the words so far, as Typer has them, and the beginning of one: what it may become."""

PACKAGE = Path(__file__).parents[1]
SIZES = (("layers", "heads"), ("num_hidden_layers", "num_attention_heads"), ("n_layer", "n_head"))
"""What configs call the number of layers and of heads."""

WEAK = ("previous", "next", "self", "induction", "duplicate", "positional")
ROLES = ("positional", *(f"weak {name}" for name in WEAK), "broad", "none")
"""Roles that are no measures."""

LARGEST = 1 << 20
"""Bytes of a config that are read, at most."""


def complete_kind(ctx: Any, incomplete: str) -> list[str]:
    """Kinds of attention."""
    return _begun(incomplete, ("encoder", "decoder", "cross"))


def complete_cmap(ctx: Any, incomplete: str) -> list[str]:
    """Colour maps: those that the page offers, and those of two sides."""
    from attnscope.render.colour import OFFERED, TWO_SIDED

    return _begun(incomplete, (*OFFERED, *TWO_SIDED))


def complete_measure(ctx: Any, incomplete: str) -> list[str]:
    """Measures, as their files declare them."""
    declared = (file.read_text("utf-8") for file in sorted((PACKAGE / "measures").glob("*.py")))
    names = [name for text in declared for name in re.findall(r'^@measure\(\s*"(\w+)"', text, re.M)]
    return _begun(incomplete, (*names, *(each.name for each in entry_points_of("measures"))))


def complete_explained(ctx: Any, incomplete: str) -> list[str]:
    """Measures, roles, weighings, and what is said of predictions."""
    from attnscope.figures import Weigh
    from attnscope.measures.flow import METHODS

    return complete_measure(ctx, incomplete) + _begun(
        incomplete, (*ROLES, *get_args(Weigh)[1:], *METHODS, "importance", "ablation", "logits")
    )


def complete_model(ctx: Any, incomplete: str) -> list[str]:
    """The bundled encoders, and the models of the hub that are on this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE

    stored = sorted(Path(HF_HUB_CACHE).glob("models--*"))
    return _begun(incomplete, ["own", "own-causal", *(_name_of(folder) for folder in stored)])


def complete_head(ctx: Any, incomplete: str) -> list[str]:
    """Heads of the trace or of the model that the words so far name."""
    return _begun(incomplete, [f"L{layer}H{head}" for layer, heads in _sizes(ctx) for head in range(heads)])


def complete_layer(ctx: Any, incomplete: str) -> list[str]:
    """Layers of the trace or of the model that the words so far name."""
    return _begun(incomplete, [str(layer) for layer, _ in _sizes(ctx)])


def _begun(begun: str, words: Any) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.lower().startswith(begun.lower())]


def _sizes(ctx: Any) -> Iterator[tuple[int, int]]:
    """Each layer with its number of heads, where a trace or a config says so; nothing where neither does."""
    file, name = ctx.params.get("saved"), ctx.params.get("model") or "own"
    with suppress(Exception):  # Tab never complains
        if file is not None:
            from attnscope.storage.trace import read_trace

            yield from {call.layer: call.heads for call in read_trace(file).description.calls}.items()
            return
        config = _config_of(str(name))
        for layers, heads in SIZES:
            if isinstance(config.get(layers), int) and isinstance(config.get(heads), int):
                yield from ((layer, config[heads]) for layer in range(min(config[layers], 1000)))
                return


def _config_of(name: str) -> dict[str, Any]:
    """The config of a bundled encoder, of a folder, or of a model of the hub that is on this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from attnscope.storage.files import read_regular

    folder = PACKAGE / "pretrained" / name if name in ("own", "own-causal") else Path(name)
    if not folder.is_dir():
        stored = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "snapshots"
        folder = next(iter(sorted(stored.iterdir())))
    config: dict[str, Any] = json.loads(read_regular(folder / "config.json", LARGEST))
    return config


def _name_of(folder: Path) -> str:
    return folder.name.removeprefix("models--").replace("--", "/")
