"""What is compared with what, and where the comparison goes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.attention import Head
from attnscope.cli import options
from attnscope.cli.command import argument, command, flag, option, refuse, refuse_first, repeat
from attnscope.cli.corpus import each_text
from attnscope.cli.deliver import deliver
from attnscope.cli.heads import parse_head, select
from attnscope.cli.source import HEAD, SourceInput, load_model, open_two, read_source, reading, reopen
from attnscope.errors import InputError, SelectionError
from attnscope.text import read_number

if TYPE_CHECKING:
    from attnscope.models import ModelInput
    from attnscope.questions.answer import Answer
    from attnscope.questions.selection import Selection


WITH = "What to compare with"


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """What is compared with what."""

    panel = WITH
    heads: list[str] | None = argument("Two heads to compare, L1H2 L5H3.")
    with_text: str | None = option("The same model on another text: what changes in which head.")
    with_model: str | None = option(
        "Another model on the same text: how far each head drifted, or its best match."
    )
    with_trace: Path | None = option("A file that --keep made, of another text, model or checkpoint.")
    composition: bool = flag(
        "Q-, K- and V-composition (Elhage et al. 2021): how much of what an earlier head writes one head, "
        "L1H2, or any reads; from the weights, without a text."
    )


@dataclass(frozen=True, kw_only=True)
class ComparedHeads(options.LayerOptions):
    """Layers, or one head number."""

    head: str | None = option(
        "3: the heads of this number in all layers. L5H3: with --with-text, its difference map."
    )


@dataclass(frozen=True, kw_only=True)
class CompareOutput(options.TableOutput):
    """Where the comparison goes."""

    out: Path | None = option(
        "Save a picture (.png, .svg, .pdf), or the numbers as arrays (.npz).", "--out", "-o"
    )


def show_composition(
    source: options.SecondNamed,
    contrast: Contrast,
    output: CompareOutput,
    picture: options.PrintedOptions,
    model: options.WeighedModelOptions,
) -> None:
    """Compute the composition of all heads, and print or save what feeds the named head, or any."""
    named = list(contrast.heads or ())
    refuse_first(
        (len(named) > 1, "HEADS", "name one head, or none: compare L1H2 --composition"),
        (model.metadata, "--weigh", "not valid with --composition, which reads the model's weights"),
    )
    fed = parse_head(named[0]) if named else None
    options.check_picture(output.out, picture.cmap, one=True, signed=True)
    nameless = output.out is not None and fed is None
    refuse(nameless, "--out", "name the head whose map is saved: compare L1H2 --composition")
    from attnscope.questions.composition import find_feeds, of_feeds

    if source.names_one:
        loaded, prepared = read_source(source, model).open(cached=False)
    else:
        loaded = load_model(model)
        prepared = loaded.prepare_any()
    with reading(loaded, prepared):
        result = find_feeds(loaded, prepared, fed)
    deliver("compare", of_feeds(result), output, picture)


@command
def compare(
    source: options.SecondNamed,
    contrast: Contrast,
    corpus: options.TextsOptions,
    attention: ComparedHeads,
    axes: options.AxisOptions,
    output: CompareOutput,
    picture: options.PrintedOptions,
    model: options.WeighedModelOptions,
) -> None:
    """Compare heads with each other, on two texts, or in two models.

    The distance of two heads is the Jensen-Shannon divergence of their rows, averaged: 0 nats where both
    look the same way, 0.693 where they share no token.

    Examples:

    attnscope compare "The cat sat on the mat because it was tired."
    attnscope compare "The cat sat on the mat." L1H2 L5H3
    attnscope compare "The cat sat on the mat." --with-text "The dog sat on the mat."
    attnscope compare L1H0 --composition -m own-causal
    attnscope compare --texts sentences.txt -m my-bert --with-model my-fine-tuned-bert --csv
    """
    if source.text is not None and _names_head(source, corpus, contrast):
        contrast = replace(contrast, heads=[source.text, *(contrast.heads or ())])
        source = replace(source, text=None)
    if contrast.composition:
        return show_composition(source, contrast, output, picture, model)
    selection = _select(attention, axes)
    _check(contrast, corpus, source, selection)
    pair = [parse_head(name, attention) for name in contrast.heads or ()]
    given = _texts(corpus, source, model) if corpus.texts else [read_source(source, model)]
    options.check_picture(output.out, picture.cmap, signed=True, suffixes=(*options.PICTURES, ".npz"))
    opening, one = None, corpus.texts is None
    if one:
        anew = replace(attention, layers=None, head=None), replace(contrast, heads=None)
        again, same = reopen(source, model)
        opening = repeat("compare", again, *anew, axes, picture, same)
    answer = _compare(given, selection, pair, contrast, opening, one=one, saving=output.out is not None)
    deliver("compare", answer, output, picture, model.metadata)


def _names_head(source: options.SecondNamed, corpus: options.TextsOptions, contrast: Contrast) -> bool:
    """Whether the first argument is a head, not a text; the text then comes from elsewhere."""
    elsewhere = source.file, source.saved, source.inputs, source.repeat_random, corpus.texts
    if any(each is not None for each in elsewhere):
        return True
    try:
        return (bool(source.image) or contrast.composition) and bool(Head(str(source.text)))
    except SelectionError:
        return False


def _select(attention: ComparedHeads, axes: options.AxisOptions) -> Selection:
    """Which heads are meant; a number alone is that head of every layer."""
    if attention.head is None:
        return select(attention, axes)
    number = read_number(attention.head)
    if number is not None and attention.layers is None:
        return select(attention, axes, number=number)
    return select(attention, axes, parse_head(attention.head, attention))


def _check(
    contrast: Contrast, corpus: options.TextsOptions, source: options.SecondNamed, selection: Selection
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
        (many and source.names_one, "TEXT", "give a text or --texts, not both"),
        (kept, "--from", "a file has one text and no model: compare it with --with-trace"),
        (text and numbered, "--head", f"which layer? write L0H{number}, or add --layer"),
        (not asked and selection.head is not None, "--head", alone),
    )


def _texts(
    corpus: options.TextsOptions, source: options.SecondNamed, model: options.WeighedModelOptions
) -> list[SourceInput]:
    """The texts of a corpus. Raises ``InputError`` where one cannot be read, or where there is none."""
    read = partial(SourceInput, source, model)
    texts = [each for _, each in each_text(corpus, read, strict=True)]
    if not texts:
        raise InputError(f"{corpus.texts} holds no text")
    return texts


def _compare(
    given: list[SourceInput],
    selection: Selection,
    pair: list[Head],
    contrast: Contrast,
    opening: str | None,
    *,
    one: bool,
    saving: bool,
) -> Answer:
    """What is asked, answered by one model or two; ``one`` says that a text was given, and no corpus."""
    from attnscope.models.served import open_file
    from attnscope.questions import across
    from attnscope.questions.compare import compare_all_heads, compare_two_heads, of_heads, of_two_heads

    rival = _rival(given[0], contrast)
    theirs: list[ModelInput] = []
    if not one:
        model = given[0].load()
        mine = [each.prepare(model) for each in given]
        if rival is not None:
            other = rival.load()
            theirs = [each.prepare(other) for each in given]
    elif rival is None:
        model, *mine = given[0].open(saving=saving)
    else:
        (model, *mine), (other, *theirs) = open_two(given[0], rival, saving=saving)
    with reading(model, *mine, *theirs):
        if contrast.with_text is not None:
            return across.of_texts(across.compare_texts(model, mine[0], theirs[0], selection), opening)
        if rival is not None:
            both = list(zip(mine, theirs, strict=True))
            return across.of_models(across.compare_models(model, other, both, selection))
        if pair:
            return of_two_heads(compare_two_heads(model, mine[0], pair[0], pair[1], selection))
        if contrast.with_trace is not None:
            return across.compare_passes(model, mine[0], open_file(contrast.with_trace), selection, opening)
        return of_heads(compare_all_heads(model, mine, selection), opening)


def _rival(first: SourceInput, contrast: Contrast) -> SourceInput | None:
    """The other text, or the text with the other model, which is loaded as the first one is."""
    if contrast.with_text is not None:
        asked = replace(first.asked, text=contrast.with_text, file=None, line=None, keep=None)
        return read_source(asked, first.model)
    if contrast.with_model is not None:  # a revision is the first one's alone
        name = replace(first.model, model=contrast.with_model, revision=None)
        return replace(first, model=name, asked=replace(first.asked, keep=None))
    return None
