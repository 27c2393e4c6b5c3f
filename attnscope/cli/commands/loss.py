"""``attnscope loss``: how well a model predicts text files."""

import math
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from attnscope.cli.command import Group, command, fields_of, refuse_typed, up_to
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import spinner
from attnscope.cli.options import ModelOptions
from attnscope.cli.source import load_model
from attnscope.text import LARGEST_SEED

FREE = ("model", "device", "offline", "trust_remote_code", "allow_pickle")
"""Options of a model that may be given for each."""


class LossOptions(Group):
    """What is predicted."""

    files: Annotated[list[Path], Argument(help="Text files; each line is a document.")]
    length: Annotated[int, Option(help="Tokens per sequence, at most.", min=16)] = 128
    seed: Annotated[
        int, Option(help="Which tokens a masked encoder has to predict.", min=0, callback=up_to(LARGEST_SEED))
    ] = 0


@command
def loss(options: LossOptions, model: ModelOptions) -> None:
    """Print a model's cross-entropy on text files, in nats per token.

    Uniform guessing gives ln(vocabulary size). Each line of a file is a document. A Hugging Face model reads
    each line alone, cut at --length tokens; for an encoder of attnscope train, lines are joined with [SEP].

    A causal model predicts every next token; a masked model predicts masked tokens: each token once for a
    Hugging Face model, 15 % of them for an encoder of attnscope train. Repeated runs give the same loss.

    Examples:

    attnscope loss sample_inputs/article.txt -m own-causal
    attnscope loss sample_inputs/article.txt -m openai-community/gpt2 --length 512
    """
    from attnscope.network import folder_of, is_encoder_folder, load_config
    from attnscope.questions.answer import Answer
    from attnscope.questions.loss import measure_loss
    from attnscope.training.data import Lines
    from attnscope.training.train import held_out_loss
    from attnscope.views import Column, Table

    folder = folder_of(model.name)
    if is_encoder_folder(folder):
        config = load_config(folder)
        refuse_typed(fields_of(ModelOptions, but=FREE), "an encoder of attnscope train needs none")
        refuse_typed("seed" * config.causal, f"{model.name} predicts every token: leave it out")
        with spinner(f"{model.name} predicts"):
            mean, tokens = held_out_loss(folder, options.files, options.length, options.seed)
        vocabulary = config.vocabulary
        of = f"every next token of {tokens:,}" if config.causal else f"15 % of {tokens:,} tokens, masked"
    else:
        refuse_typed("seed", f"{model.name} predicts each token once: leave it out")
        lines = list(Lines(tuple(options.files)))
        loaded = load_model(model, predicting=True)
        with spinner(f"{loaded.title} predicts"):
            mean, tokens, vocabulary = measure_loss(loaded, lines, options.length)
        causal = loaded.objective.mask is None
        of = f"{tokens:,} tokens, each {'after those before it' if causal else 'masked once'}"
    guess = f"uniform guessing: ln({vocabulary:,}) = {math.log(vocabulary):.3f}"
    words = ((f"{mean:.3f} nats per token ({of})",),)
    deliver("loss", Answer((Table((Column(""),), words, notes=(guess,)),), {}, dict), None)
