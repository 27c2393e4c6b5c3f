"""``attnscope patch``: how much of the difference between two texts each head restores."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command, refuse_combined, refuse_first, refuse_without
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
        Option(help="output, q, k, v or pattern.", metavar="<part>"),
    ] = "output"
    by: Annotated[Literal["head", "token"], Option(help="head, or token: its residual stream.")] = "head"
    to: Annotated[str | None, Option(help="Patch only what reaches L2H3:q (k, v, pattern) or logits.")] = None
    noise: Annotated[bool, Option(help="Patch in the opposite direction.", rich_help_panel=options.WHERE)] = (
        False
    )
    fast: Annotated[bool, Option(help="Estimate all heads from one gradient.")] = False
    exact: Annotated[bool, Option(help="With --fast: run all heads too; correlate both.")] = False


@command
def patch(
    source: options.SourceOptions,
    patching: PatchOptions,
    template: options.PromptsOptions,
    cause: CauseOptions,
    attention: options.LayerOptions,
    output: options.TableOutput,
    picture: options.SignedOptions,
    model: options.ModelOptions,
) -> None:
    """Activation patching: which heads restore a prediction?

    The effect is how much of the score's difference between the two texts a head restores, 1 for all of it.
    Both texts need the same number of tokens.

    Examples:

    attnscope patch "The cat sat on" --with-text "The dog sat on" -m own-causal
    attnscope patch "A cat sat" --with-text "A dog sat" -m own-causal --by token
    attnscope patch --pairs sample_inputs/repeats.tsv -m own-causal --what pattern
    attnscope patch --pairs sample_inputs/repeats.tsv -m own-causal --to L1H0:k
    attnscope patch --pairs sample_inputs/repeats.tsv -m own-causal --fast --exact
    """
    parts, token = "what=q what=k what=v what=pattern", patching.by == "token"
    refuse_without(("exact", "fast"))
    refuse_combined(
        ("pairs", "with_text prompts", "the file has the texts"),
        ("by=token", f"pairs prompts to fast {parts} head layers kind", "a map of tokens is of one pair"),
        (parts, "fast", "it estimates the effect of outputs"),
        (parts, "to", "--to L9H9:q names the part"),
        ("to", "fast", ""),
    )
    textless = patching.with_text is None and patching.pairs is None
    refuse_first(
        (patching.pairs and source.names_one, "--pairs", "the file has the texts: leave out yours"),
        (textless, "--with-text", "give the other text, or --pairs FILE"),
        (source.saved, "--from", "a file holds no model to patch: give two texts"),
    )
    from attnscope.models.inputs import Limit
    from attnscope.questions.cause import intervention_answer
    from attnscope.questions.patching import Receiver, TextPair, read_pairs, trace_answer, trace_tokens
    from attnscope.questions.patching import patch as patch_heads

    heads = cause.parse_heads(attention, output)
    to = None if patching.to is None else Receiver.parse(patching.to)
    if patching.pairs is not None:
        table, loaded = read_file(patching.pairs), load_model(model, predicting=True)
        limit = Limit(source.max_tokens, source.truncate)
        pairs = read_pairs(table, partial(loaded.prepare, limit=limit), cause.target, cause.against)
    else:
        pass_source = read_source(source, model)
        prompts = list_prompts(pass_source, template, cause.target, cause.against)
        loaded = pass_source.load(predicting=True)
        another = replace(source, text=patching.with_text, file=None, line=None, save_trace=None)
        read, read_other = pass_source.reader(loaded), read_source(another, model).reader(loaded)
        pairs = [
            TextPair(read(each.text), read_other(other), each.target, each.against)
            for each in prompts
            for other in [each.fill(patching.with_text or "")]
        ]
    with spinner(f"{loaded.name} predicts with the heads of another text"):
        if token:
            answer = trace_answer(trace_tokens(loaded, pairs[0], noise=patching.noise))
        else:
            result = patch_heads(
                loaded, pairs, options.select(attention), heads=heads, what=patching.what, to=to,
                noise=patching.noise, fast=patching.fast, exact=patching.exact,
            )  # fmt: skip
            answer = intervention_answer(result)
    file, other = patching.pairs or template.prompts, template.prompts and patching.with_text
    clean = loaded, file, template.prompts and pass_source.text, *(pair.clean for pair in pairs)
    corrupt = loaded, file, other, *(pair.corrupt for pair in pairs)
    deliver("patch", answer, output, picture, None, clean, corrupt)
