"""What is compared with what, and where the comparison goes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from attnscope.attention import Head
from attnscope.cli import options
from attnscope.cli.command import (
    Group,
    Often,
    command,
    refuse,
    refuse_combined,
    refuse_first,
    refuse_without,
    repeat,
)
from attnscope.cli.corpus import TextsOptions, each_text
from attnscope.cli.deliver import deliver
from attnscope.cli.source import HEAD, PassSource, load_model, model_progress, read_source, reopen
from attnscope.errors import InputError, SelectionError
from attnscope.text import read_number

if TYPE_CHECKING:
    from attnscope.models import ModelInput
    from attnscope.questions.answer import Answer
    from attnscope.questions.selection import Selection


class Contrast(Group):
    """What is compared with what."""

    panel = "What to compare with"
    heads: Annotated[
        list[str] | None, Argument(help="Two heads to compare, L1H2 L5H3, or one: which are nearest.")
    ] = None
    with_text: Annotated[str | None, Often(help="Another text: what changes in which head.")] = None
    with_model: Annotated[str | None, Often(help="Another model: how far heads drifted.")] = None
    with_trace: Annotated[Path | None, Option(help="A file of --save-trace: another text or model.")] = None
    by: Annotated[
        Literal["layer", "head"] | None,
        Often(help="layer: which are alike; head: successors.", metavar="<what>"),
    ] = None
    composition: Annotated[
        bool,
        Often(help="What a head, or any, reads of earlier heads, by the weights."),
    ] = False


class ComparedHeads(options.LayerOptions):
    """Layers, or one head number."""

    head: Annotated[str | None, Option(help="One head: 3 of all layers, or L5H3.")] = None


class CompareOutput(options.TableOutput):
    """Where the comparison goes."""

    suffixes = (*options.PICTURES, ".npz", *options.TABLES)
    scatter: Annotated[
        bool, Option(help="Add every head as a point to a saved picture.", rich_help_panel=options.PICTURE)
    ] = False


def show_composition(
    source: options.SourceOptions,
    contrast: Contrast,
    output: CompareOutput,
    picture: options.SignedOptions,
    model: options.MixedModelOptions,
) -> None:
    """The composition of all heads: what the named head reads of earlier ones, or any head."""
    named = list(contrast.heads or ())
    unread = "layers kind head words hide_special with_text with_model with_trace texts field limit line"
    unread += " by scatter max_tokens truncate second_text generate chat mixers channel"
    refuse_combined((unread, "composition", "it reads parameters"))
    refuse(model.metadata, "--weighting", "cannot be combined with --composition: it reads parameters")
    if output.out is None:
        refuse_combined((options.COLOURS, "composition", "it prints a table"))
    refuse(len(named) > 1, "HEADS", "name one head, or none: compare L1H2 --composition")
    reader = options.parse_head(named[0]) if named else None
    if output.out is not None:
        drawn = output.suffix not in options.TABLES
        refuse(drawn and reader is None, "--out", "name the head of the map: compare L1H2 --composition")
        options.check_place(output.out, (*options.PICTURES, *options.TABLES))
    from attnscope.questions.composition import composition_answer, measure_composition

    if source.names_one:
        loaded, prepared = read_source(source, model).open(cached=False)
    else:
        loaded = load_model(model)
        prepared = loaded.prepare_any()
    with model_progress(loaded, prepared):
        result = measure_composition(loaded, prepared, reader)
    deliver("compare", composition_answer(result), output, picture, None, (loaded, prepared))


@command
def compare(
    source: options.SourceOptions,
    contrast: Contrast,
    corpus: TextsOptions,
    attention: ComparedHeads,
    axes: options.AxisOptions,
    output: CompareOutput,
    picture: options.SignedOptions,
    model: options.MixedModelOptions,
) -> None:
    """Compare heads with each other, on two texts, or in two models.

    The distance of two heads is the Jensen-Shannon divergence of their rows, averaged: 0 nats where both
    attend alike, 0.693 where they share no token.

    Examples:

    attnscope compare "The cat sat on the mat." L1H3 L2H1
    attnscope compare "The cat sat on the mat." L2H1
    attnscope compare "The cat sat on it." --with-text "The dog sat on it."
    attnscope compare "The cat sat." --with-model google-bert/bert-base-uncased
    attnscope compare --texts sample_inputs/sentences.txt --by layer
    attnscope compare L1H0 --composition -m own-causal
    """
    if source.text is not None and _names_head(source, corpus, contrast):
        contrast = replace(contrast, heads=[source.text, *(contrast.heads or ())])
        source = replace(source, text=None)
    if contrast.composition:
        return show_composition(source, contrast, output, picture, model)
    selection = _select(attention, axes)
    refuse_combined(
        (
            "by",
            "heads with_text with_trace",
            "it compares all heads of one model, or of two (--with-model)",
        ),
        ("by", "head", "a layer has several heads"),
        ("scatter", "by heads with_text with_model with_trace", "points are the heads of one model"),
    )
    refuse_without(("scatter", "out"))
    if output.suffix in options.TABLES:
        refuse_combined(("scatter", "out", f"a {output.suffix} file holds the table"))
    _check(contrast, corpus, source, selection)
    pair = [options.parse_head(name, attention) for name in contrast.heads or ()]
    opening = None
    if corpus.texts is None:
        sources = [read_source(source, model)]
        unnamed = replace(attention, layers=None, head=None), replace(contrast, heads=None, by=None)
        again, same_model = reopen(source, model)
        opening = repeat("compare", again, *unnamed, axes, picture, same_model)
    else:
        texts = each_text(corpus, lambda text: PassSource.from_options(source, model, text), strict=True)
        sources = [text for _, text in texts]
        if not sources:
            raise InputError(f"{corpus.texts} holds no text")
    from attnscope.models.served import open_file
    from attnscope.questions.compare import (
        compare_all_heads,
        compare_two_heads,
        heads_answer,
        two_heads_answer,
    )
    from attnscope.questions.compare_layers import compare_layers, continued_answer, layers_answer
    from attnscope.questions.compare_texts_models import (
        compare_models,
        compare_passes,
        compare_texts,
        models_answer,
        texts_answer,
    )
    from attnscope.questions.nearest_heads import nearest_answer, nearest_heads

    of_models: Callable[[Any], Answer] = models_answer
    of_heads: Callable[[Any], Answer] = partial(heads_answer, command=opening, scatter=output.scatter)
    if contrast.by is not None:
        by_layer = layers_answer if contrast.by == "layer" else continued_answer
        of_models = of_heads = lambda result: by_layer(compare_layers(result), opening)
    rival = _rival_source(contrast, source, sources[0], model)
    if corpus.texts is None:
        (loaded, left), (other, right) = _open_pair(sources[0], rival)
    else:
        loaded, left = _prepare_all(sources[0], sources)
        other, right = (None, []) if rival is None else _prepare_all(rival, sources)
    trace: Any = None if contrast.with_trace is None else open_file(contrast.with_trace)
    with model_progress(loaded, *left, *right):
        modes: tuple[tuple[object, Callable[[], Answer]], ...] = (
            (
                contrast.with_text is not None,
                lambda: texts_answer(compare_texts(loaded, left[0], right[0], selection), opening),
            ),
            (
                other,
                lambda: of_models(compare_models(loaded, other, [*zip(left, right, strict=True)], selection)),
            ),
            (
                len(pair) == 1,
                lambda: nearest_answer(
                    nearest_heads(compare_all_heads(loaded, left, selection), pair[0]), opening
                ),
            ),
            (pair, lambda: two_heads_answer(compare_two_heads(loaded, left[0], pair[0], pair[1], selection))),
            (trace, lambda: compare_passes(loaded, left[0], trace, selection, opening)),
            (True, lambda: of_heads(compare_all_heads(loaded, left, selection))),
        )
        answer = next(answer_of() for applies, answer_of in modes if applies)
    compared = () if trace is None else (trace, trace.prepared)
    compared = compared if other is None else (other, corpus.path, *right)
    deliver("compare", answer, output, picture, model.metadata, (loaded, corpus.path, *left), compared)


def _select(attention: ComparedHeads, axes: options.AxisOptions) -> Selection:
    """The heads that are compared; a number alone is that head of every layer."""
    number = None if attention.layers is not None else read_number(attention.head or "")
    if number is not None:
        return options.select(attention, axes, number=number)
    head = None if attention.head is None else options.parse_head(attention.head, attention)
    return options.select(attention, axes, head)


def _rival_source(
    contrast: Contrast, source: options.SourceOptions, first: PassSource, model: options.MixedModelOptions
) -> PassSource | None:
    """The other text, or the text in the other model, if one is named."""
    if contrast.with_text is not None:
        text = replace(source, text=contrast.with_text, file=None, line=None, save_trace=None)
        return read_source(text, model)
    if contrast.with_model is None:
        return None
    rival = replace(model, model=contrast.with_model, revision=None)  # a revision is the first one's alone
    return replace(first, model=rival, save_trace=None)


def _open_pair(first: PassSource, rival: PassSource | None) -> list[tuple[Any, list[ModelInput]]]:
    """The models and inputs of one text and its rival; the same model is loaded once."""
    if rival is None:
        loaded, prepared = first.open()
        return [(loaded, [prepared]), (None, [])]
    generates = [each.request.generate is not None for each in (first, rival)]
    same = first.model == rival.model and generates[0] == generates[1] and first.saved is None
    load = cache(first.load) if same else None
    opened = [each.open(load=load) for each in (first, rival)]
    return [(loaded, [prepared]) for loaded, prepared in opened]


def _prepare_all(source: PassSource, texts: list[PassSource]) -> tuple[Any, list[ModelInput]]:
    """The model of a source, and all texts for it."""
    loaded = source.load()
    return loaded, [each.prepare(loaded) for each in texts]


def _names_head(source: options.SourceOptions, corpus: TextsOptions, contrast: Contrast) -> bool:
    """Whether the first argument is a head, not a text; the text then comes from elsewhere."""
    elsewhere = source.file, source.saved, source.inputs, source.repeat_random, corpus.texts
    if any(each is not None for each in elsewhere):
        return True
    try:
        return (bool(source.image) or contrast.composition) and bool(Head(str(source.text)))
    except SelectionError:
        return False


def _check(
    contrast: Contrast, corpus: TextsOptions, source: options.SourceOptions, selection: Selection
) -> None:
    """Wrong usage for what says nothing together."""
    named, many = contrast.heads or [], corpus.texts is not None
    text, model = contrast.with_text is not None, contrast.with_model is not None
    count = bool(named) + text + model + (contrast.with_trace is not None)
    number, numbered = selection.number, selection.number is not None
    second = named[0] if len(named) == 1 and not HEAD.fullmatch(named[0]) else None
    quoted = f"a second text goes after --with-text: --with-text {shlex.quote(str(second))}"
    here = f"here {'is' if len(named) == 1 else 'are'} {', '.join(named)} (quote a text of several words)"
    alone = f"name the head behind the text, to see which are nearest: TEXT {selection.head}"
    placed = len(named) == 2 and (numbered or not selection.every_layer)
    lone = len(named) == 2 or contrast.with_text or contrast.with_trace
    fixed = source.saved is not None and (text or model)
    refuse_first(
        (count > 1, "HEADS", "choose one of two heads, --with-text, --with-model and --with-trace"),
        (second, "HEADS", quoted),
        (len(named) > 2, "HEADS", f"name two heads to compare, like L1H2 L5H3, or one; {here}"),
        (placed, "--head", "the two heads already name their layers and numbers"),
        (many and lone, "--texts", "two heads, --with-text and --with-trace take one text"),
        (many and source.names_one, "--texts", "cannot be combined with a text or another input"),
        (fixed, "--from", "a file has one text and no model: compare it with --with-trace"),
        (text and numbered, "--head", f"which layer? write L0H{number}, or add --layer"),
        (not count and selection.head is not None, "--head", alone),
    )
