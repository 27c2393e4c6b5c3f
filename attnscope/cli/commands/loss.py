"""``attnscope loss``: how well a model predicts text files."""

from __future__ import annotations

import math
from pathlib import Path

from attnscope.cli.command import REQUIRED, argument, command, option
from attnscope.cli.deliver import deliver
from attnscope.cli.options import ModelOptions
from attnscope.cli.source import load_model
from attnscope.cli.waiting import waiting
from attnscope.text import LARGEST_SEED


class LossOptions(ModelOptions):
    """Which model is asked, and what."""

    model: str = argument(
        "own, own-causal, a folder that attnscope train made, or a Hugging Face model.", default=REQUIRED
    )
    files: list[Path] = argument(
        "Text files that the model was not trained on; each line is a document.", default=REQUIRED
    )
    length: int = option("Tokens per sequence, at most.", min=16, default=128)
    seed: int = option(
        "Which tokens are hidden from an encoder that attnscope train made.",
        min=0,
        largest=LARGEST_SEED,
        default=0,
    )


@command
def loss(asked: LossOptions) -> None:
    """Print a model's cross-entropy on text files, in nats per token.

    Uniform guessing gives ln(vocabulary size). Each line of a file is a document. A Hugging Face model reads
    each line alone, cut at --length tokens; for an encoder of attnscope train, lines are joined with [SEP].

    A causal model predicts every next token; a masked model predicts masked tokens: each token once for a
    Hugging Face model, 15 % of them for an encoder of attnscope train. Repeated runs give the same figure.

    Examples:

    attnscope loss my-encoder unseen-book.txt
    attnscope loss openai-community/gpt2 unseen-book.txt --length 512
    """
    from attnscope.network import folder_of, is_encoder_folder, load_config
    from attnscope.questions.answer import Answer
    from attnscope.questions.loss import measure_loss
    from attnscope.training.data import Lines
    from attnscope.training.train import held_out_loss
    from attnscope.views import Column, Table

    folder = folder_of(asked.name)
    if is_encoder_folder(folder):
        config = load_config(folder)
        with waiting(f"{asked.name} predicts"):
            mean, tokens = held_out_loss(folder, asked.files, asked.length, asked.seed)
        vocabulary = config.vocabulary
        of = f"every next token of {tokens:,}" if config.causal else f"15 % of {tokens:,} tokens, masked"
    else:
        lines = list(Lines(tuple(asked.files)))
        model = load_model(asked, predicting=True)
        with waiting(f"{model.title} predicts"):
            mean, tokens, vocabulary = measure_loss(model, lines, asked.length)
        causal = model.objective.mask is None
        of = f"{tokens:,} tokens, each {'after those before it' if causal else 'masked once'}"
    guess = f"uniform guessing: ln({vocabulary:,}) = {math.log(vocabulary):.3f}"
    words = ((f"{mean:.3f} nats per token ({of})",),)
    deliver("loss", Answer((Table((Column(""),), words, notes=(guess,)),), {}, dict), None)
