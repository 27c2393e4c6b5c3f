"""``attnscope patch``: how much of the difference between two texts each head carries."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, refuse_first
from attnscope.cli.commands.cut import CauseOptions
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import spinner
from attnscope.cli.source import list_prompts, load_model, read_file, read_source


class PatchOptions(Group):
    """What is patched into what."""

    panel = MOST_USED
    with_text: Annotated[str | None, Option(help="The other text, of as many tokens.")] = None
    pairs: Annotated[
        Path | None, Option(help="Pairs, a line each: text, other text, target, other word.")
    ] = None
    what: Annotated[
        Literal["output", "q", "k", "v", "pattern"],
        Option(help="output, q, k, v, or pattern (weights).", metavar="<part>"),
    ] = "output"
    by: Annotated[Literal["head", "token"], Option(help="head, or token: its residual stream.")] = "head"
    to: Annotated[str | None, Option(help="Patch only what reaches L2H3:q (k, v, pattern) or logits.")] = None
    noise: Annotated[
        bool, Option(help="Put the other text's heads into the text's pass.", rich_help_panel=options.WHERE)
    ] = False
    fast: Annotated[bool, Option(help="Estimate all heads from one gradient.")] = False
    exact: Annotated[bool, Option(help="With --fast: run all heads too; correlate both.")] = False


@command
def patch(
    source: options.SourceOptions,
    asked: PatchOptions,
    template: options.PromptsOptions,
    cause: CauseOptions,
    attention: options.LayerOptions,
    output: options.TableOutput,
    picture: options.SignedOptions,
    model: options.ModelOptions,
) -> None:
    """Activation patching: which heads restore a prediction?

    The effect is the share of the score's difference between the two texts that comes back, 1 for all of
    it. Both texts need the same number of tokens.

    Examples:

    attnscope patch "The cat sat on" --with-text "The dog sat on" -m own-causal
    attnscope patch "A cat sat" --with-text "A dog sat" -m own-causal --by token
    attnscope patch --pairs sample_inputs/repeats.tsv -m own-causal --what pattern
    attnscope patch --pairs sample_inputs/repeats.tsv -m own-causal --to L1H0:k
    attnscope patch --pairs sample_inputs/repeats.tsv -m own-causal --fast --exact
    """
    path, many, token = asked.to is not None, asked.pairs is not None, asked.by == "token"
    written = cause.head is not None or attention != options.LayerOptions()
    named = asked.with_text or source.names_one
    refuse_first(
        (many and named, "--pairs", "the file has the texts: leave out yours"),
        (many and template.prompts, "--prompts", "--pairs has the texts: give one of both"),
        ((many or template.prompts) and token, "--by", "a map of tokens is of one pair: give two texts"),
        (not many and asked.with_text is None, "--with-text", "give the other text, or --pairs FILE"),
        (asked.fast and asked.what != "output", "--what", "--fast estimates the effect of outputs alone"),
        (asked.exact and not asked.fast, "--exact", "only valid with --fast"),
        (path and asked.what != "output", "--what", "--to says what is patched: L9H9:q"),
        (path and asked.fast, "--to", "not valid with --fast"),
        (token and (path or asked.fast or asked.what != "output"), "--by", "token goes alone"),
        (token and written, "--head, --layer", "a map of tokens is of every layer: leave them out"),
        (source.saved is not None, "--from", "a file holds no model to patch: give two texts"),
    )
    from attnscope.models.inputs import Limit
    from attnscope.questions.cause import intervention_answer
    from attnscope.questions.patching import Receiver, TextPair, read_pairs, trace_answer, trace_tokens
    from attnscope.questions.patching import patch as patch_heads

    heads = options.parse_heads(cause.head, attention)
    to = None if asked.to is None else Receiver.parse(asked.to)
    if asked.pairs is not None:
        table, loaded = read_file(asked.pairs), load_model(model, predicting=True)
        limit = Limit(source.max_tokens, source.truncate)
        pairs = read_pairs(table, partial(loaded.prepare, limit=limit), cause.target, cause.against)
    else:
        given = read_source(source, model)
        prompts = list_prompts(given, template, cause.target, cause.against)
        loaded = given.load(predicting=True)
        another = replace(source, text=asked.with_text, file=None, line=None, save_trace=None)
        read, read_other = given.reader(loaded), read_source(another, model).reader(loaded)
        pairs = [
            TextPair(read(each.text), read_other(each.fill(asked.with_text or "")), each.target, each.against)
            for each in prompts
        ]
    with spinner(f"{loaded.name} predicts with the heads of another text"):
        if token:
            answer = trace_answer(trace_tokens(loaded, pairs[0], noise=asked.noise))
        else:
            result = patch_heads(
                loaded, pairs, options.select(attention), heads=heads, what=asked.what, to=to,
                noise=asked.noise, fast=asked.fast, exact=asked.exact,
            )  # fmt: skip
            answer = intervention_answer(result)
    file, other = asked.pairs or template.prompts, template.prompts and asked.with_text
    clean = loaded, file, template.prompts and given.text, *(pair.clean for pair in pairs)
    corrupt = loaded, file, other, *(pair.corrupt for pair in pairs)
    deliver("patch", answer, output, picture, None, clean, corrupt)
