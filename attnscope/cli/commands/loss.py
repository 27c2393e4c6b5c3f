"""``attnscope loss``: how well a model predicts text files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from attnscope.cli.command import REQUIRED, argument, command, option
from attnscope.cli.options import ModelOptions
from attnscope.cli.source import load_model
from attnscope.cli.waiting import waiting
from attnscope.text import LARGEST_SEED


@dataclass(frozen=True, kw_only=True)
class LossOptions(ModelOptions):
    """Which model is asked, and what."""

    model: str = argument(
        "own, own-causal, a folder that attnscope train made, or a Hugging Face model.", default=REQUIRED
    )
    files: list[Path] = argument(
        "Text files that the model was not trained on; each line is a document.", default=REQUIRED
    )
    length: int = option("Tokens that are read together.", min=16, default=128)
    seed: int = option(
        "Which tokens are hidden from an encoder that attnscope train made.",
        min=0,
        largest=LARGEST_SEED,
        default=0,
    )


@command
def loss(asked: LossOptions) -> None:
    """Print how well a model predicts: nats a token, where a blind one has the vocabulary's logarithm.

    Each line of a file is a document. A Hugging Face model reads each by itself, cut at --length tokens; for
    an encoder that attnscope train made, lines are joined with [SEP] between them, as in its training.

    A masked model predicts hidden tokens, a causal one every next token: of an encoder that attnscope train
    made 15 % are hidden, of a Hugging Face model each token once. The same files ask the same questions.

    Examples:

    attnscope loss my-encoder unseen-book.txt

    attnscope loss openai-community/gpt2 unseen-book.txt --length 512
    """
    from attnscope.network.folder import BUNDLED, is_encoder_folder

    ours = asked.name in BUNDLED or is_encoder_folder(Path(asked.name))
    mean, of, vocabulary = _ours(asked) if ours else _of_any(asked)
    print(f"{mean:.3f} nats a token, asked for {of}; predicting blindly is {math.log(vocabulary):.3f}")


def _ours(asked: LossOptions) -> tuple[float, str, int]:
    """The loss of an encoder of our own, what it was asked for, and its vocabulary's size."""
    from attnscope.network import bundled, load_config
    from attnscope.network.folder import BUNDLED
    from attnscope.training.run import held_out_loss

    folder = bundled(asked.name) if asked.name in BUNDLED else Path(asked.name)
    config = load_config(folder)
    with waiting(f"{asked.name} predicts"):
        mean, tokens = held_out_loss(folder, asked.files, asked.length, asked.seed)
    wanted = "every next token" if config.causal else "15 % of the tokens"
    return mean, f"{wanted} of {tokens:,}", config.vocabulary


def _of_any(asked: LossOptions) -> tuple[float, str, int]:
    """The same of any other model that predicts."""
    from attnscope.questions.loss import measure_loss
    from attnscope.training.data import Lines

    lines = list(Lines(tuple(asked.files)))
    model = load_model(asked, predicting=True)
    with waiting(f"{model.title} predicts"):
        result = measure_loss(model, lines, asked.length)
    way = "each hidden once" if result.masked else "each after those before it"
    return result.mean, f"{result.tokens:,} tokens, {way}", result.vocabulary
