"""What is compared with what, and where the comparison goes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnscope.attention import Head
from attnscope.cli import options
from attnscope.cli.command import (
    Group,
    Often,
    command,
    refuse,
    refuse_first,
    refuse_useless,
    repeat,
)
from attnscope.cli.deliver import deliver
from attnscope.cli.source import HEAD, PassSource, each_text, load_model, model_progress, read_source, reopen
from attnscope.errors import InputError, SelectionError
from attnscope.text import read_number

if TYPE_CHECKING:
    from attnscope.models import ModelInput
    from attnscope.questions.selection import Selection


class Contrast(Group):
    """What is compared with what."""

    panel = "What to compare with"
    heads: Annotated[list[str] | None, Argument(help="Two heads to compare, L1H2 L5H3.")] = None
    with_text: Annotated[str | None, Often(help="Another text: what changes in which head.")] = None
    with_model: Annotated[str | None, Often(help="Another model: how far each head drifted.")] = None
    with_trace: Annotated[Path | None, Option(help="A file of --save-trace: another text or model.")] = None
    composition: Annotated[
        bool,
        Often(help="What a head, or any, reads of earlier heads, from the weights (Elhage et al. 2021)."),
    ] = False


class ComparedHeads(options.LayerOptions):
    """Layers, or one head number."""

    head: Annotated[str | None, Option(help="3: of all layers. L5H3: its difference map.")] = None


class CompareOutput(options.TableOutput):
    """Where the comparison goes."""

    suffixes = (*options.PICTURES, ".npz")


def show_composition(
    source: options.SourceOptions,
    contrast: Contrast,
    output: CompareOutput,
    picture: options.SignedOptions,
    model: options.WeightedModelOptions,
) -> None:
    """Compute the composition of all heads, and print or save what feeds the named head, or any."""
    named = list(contrast.heads or ())
    unread = "layers kind head words hide_special with_text with_model with_trace texts field limit line"
    unread += " max_tokens truncate second_text generate chat"
    refuse_useless(
        ("--composition", True, "it reads the model's weights", unread),
        ("--composition", output.out is None, "it prints a table", options.COLOURS),
    )
    refuse_first(
        (len(named) > 1, "HEADS", "name one head, or none: compare L1H2 --composition"),
        (model.metadata, "--weighting", "not valid with --composition, which reads the model's weights"),
    )
    fed = options.parse_head(named[0]) if named else None
    if output.out is not None:
        refuse(fed is None, "--out", "name the head whose map is saved: compare L1H2 --composition")
        options.check_place(output.out, options.PICTURES)
    from attnscope.questions.composition import composition_answer, measure_composition

    if source.names_one:
        loaded, prepared = read_source(source, model).open(cached=False)
    else:
        loaded = load_model(model)
        prepared = loaded.prepare_any()
    with model_progress(loaded, prepared):
        result = measure_composition(loaded, prepared, fed)
    deliver("compare", composition_answer(result), output, picture, None, (loaded, prepared))


@command
def compare(
    source: options.SourceOptions,
    contrast: Contrast,
    corpus: options.TextsOptions,
    attention: ComparedHeads,
    axes: options.AxisOptions,
    output: CompareOutput,
    picture: options.SignedOptions,
    model: options.WeightedModelOptions,
) -> None:
    """Compare heads with each other, on two texts, or in two models.

    The distance of two heads is the Jensen-Shannon divergence of their rows, averaged: 0 nats where both
    look the same way, 0.693 where they share no token.

    Examples:

    attnscope compare "The cat sat on the mat because it was tired."
    attnscope compare "The cat sat on the mat." L1H3 L2H1
    attnscope compare "The cat sat on it." --with-text "The dog sat on it."
    attnscope compare "The cat sat." --with-model google-bert/bert-base-uncased
    attnscope compare --texts sample_inputs/sentences.txt --csv
    attnscope compare L1H0 --composition -m own-causal
    """
    if source.text is not None and _names_head(source, corpus, contrast):
        contrast = replace(contrast, heads=[source.text, *(contrast.heads or ())])
        source = replace(source, text=None)
    if contrast.composition:
        return show_composition(source, contrast, output, picture, model)
    number = None if attention.layers is not None else read_number(attention.head or "")
    if number is not None:  # a number alone is that head of every layer
        selection = options.select(attention, axes, number=number)
    else:
        head = None if attention.head is None else options.parse_head(attention.head, attention)
        selection = options.select(attention, axes, head)
    _check(contrast, corpus, source, selection)
    pair = [options.parse_head(name, attention) for name in contrast.heads or ()]
    opening, one, saving = None, corpus.texts is None, output.out is not None
    if one:
        given = [read_source(source, model)]
        anew = replace(attention, layers=None, head=None), replace(contrast, heads=None)
        again, same = reopen(source, model)
        opening = repeat("compare", again, *anew, axes, picture, same)
    else:
        texts = each_text(corpus, lambda text: PassSource.from_options(source, model, text), strict=True)
        given = [text for _, text in texts]
        if not given:
            raise InputError(f"{corpus.texts} holds no text")
    from attnscope.models.served import open_file
    from attnscope.questions.compare import (
        compare_all_heads,
        compare_two_heads,
        heads_answer,
        two_heads_answer,
    )
    from attnscope.questions.compare_texts_models import (
        compare_models,
        compare_passes,
        compare_texts,
        models_answer,
        texts_answer,
    )

    first, rival = given[0], None
    if contrast.with_text is not None:
        asked = replace(source, text=contrast.with_text, file=None, line=None, save_trace=None)
        rival = read_source(asked, model)
    elif contrast.with_model is not None:  # a revision is the first one's alone
        name = replace(model, model=contrast.with_model, revision=None)
        rival = replace(first, model=name, save_trace=None)
    theirs: list[ModelInput] = []
    compared: tuple[Any, ...] = ()
    if not one:
        loaded = first.load()
        mine = [each.prepare(loaded) for each in given]
        if rival is not None:
            other = rival.load()
            theirs = [each.prepare(other) for each in given]
    elif rival is None:
        loaded, *mine = first.open(saving=saving)
    else:  # the same model is loaded once
        writes = [each.request.generate is not None for each in (first, rival)]
        alike = model == rival.model and writes[0] == writes[1] and first.saved is None
        load = cache(first.load) if alike else None
        (loaded, *mine), (other, *theirs) = (each.open(saving=saving, load=load) for each in (first, rival))
    with model_progress(loaded, *mine, *theirs):
        if contrast.with_text is not None:
            answer = texts_answer(compare_texts(loaded, mine[0], theirs[0], selection), opening)
            compared = other, *theirs
        elif rival is not None:
            compared = other, corpus.texts, *theirs
            both = list(zip(mine, theirs, strict=True))
            answer = models_answer(compare_models(loaded, other, both, selection))
        elif pair:
            answer = two_heads_answer(compare_two_heads(loaded, mine[0], pair[0], pair[1], selection))
        elif contrast.with_trace is not None:
            trace = open_file(contrast.with_trace)
            compared = trace, trace.prepared
            answer = compare_passes(loaded, mine[0], trace, selection, opening)
        else:
            answer = heads_answer(compare_all_heads(loaded, mine, selection), opening)
    deliver("compare", answer, output, picture, model.metadata, (loaded, corpus.texts, *mine), compared)


def _names_head(source: options.SourceOptions, corpus: options.TextsOptions, contrast: Contrast) -> bool:
    """Whether the first argument is a head, not a text; the text then comes from elsewhere."""
    elsewhere = source.file, source.saved, source.inputs, source.repeat_random, corpus.texts
    if any(each is not None for each in elsewhere):
        return True
    try:
        return (bool(source.image) or contrast.composition) and bool(Head(str(source.text)))
    except SelectionError:
        return False


def _check(
    contrast: Contrast, corpus: options.TextsOptions, source: options.SourceOptions, selection: Selection
) -> None:
    """Wrong usage for what says nothing together."""
    named, many = contrast.heads or [], corpus.texts is not None
    text, model = contrast.with_text is not None, contrast.with_model is not None
    asked = bool(named) + text + model + (contrast.with_trace is not None)
    number, numbered = selection.number, selection.number is not None
    second = named[0] if len(named) == 1 and not HEAD.fullmatch(named[0]) else None
    quoted = f"a second text goes after --with-text: --with-text {shlex.quote(str(second))}"
    here = f"here {'is' if len(named) == 1 else 'are'} {', '.join(named)} (quote a text of several words)"
    alone = "one head alone cannot be compared: name two, or give its number alone"
    placed = named and (numbered or not selection.every_layer)
    lone = named or contrast.with_text or contrast.with_trace
    kept = source.saved is not None and (text or model)
    refuse_first(
        (asked > 1, "HEADS", "choose one of two heads, --with-text, --with-model and --with-trace"),
        (second, "HEADS", quoted),
        (named and len(named) != 2, "HEADS", f"name two heads to compare, like L1H2 L5H3; {here}"),
        (placed, "--head", "the two heads already name their layers and numbers"),
        (many and lone, "--texts", "two heads, --with-text and --with-trace take one text"),
        (many and source.names_one, "--texts", "cannot be combined with a text or another input"),
        (kept, "--from", "a file has one text and no model: compare it with --with-trace"),
        (text and numbered, "--head", f"which layer? write L0H{number}, or add --layer"),
        (not asked and selection.head is not None, "--head", alone),
    )
