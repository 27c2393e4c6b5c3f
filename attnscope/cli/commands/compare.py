"""``attnscope compare``: heads across layers, two heads, two texts, two models."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import typer

from attnscope.attention import Head
from attnscope.cli.command import command, repeat
from attnscope.cli.heads import parse_head, select
from attnscope.cli.looks.feeds import show_feeds
from attnscope.cli.options.compare import ComparedHeads, CompareOutput, Contrast
from attnscope.cli.options.corpus import TextsOptions
from attnscope.cli.options.model import Said, WeighedModelOptions
from attnscope.cli.options.picture import (
    PICTURES,
    AxisOptions,
    PrintedOptions,
    check_picture,
)
from attnscope.cli.options.source import SecondNamed
from attnscope.cli.source import Source, open_two, read_source, reading, reopen
from attnscope.errors import InputError, OutputError, SelectionError
from attnscope.text import read_number

if TYPE_CHECKING:
    from attnscope.analysis.selection import Selection
    from attnscope.answers.compared import Compared

SAVED = (*PICTURES, ".npz")


@command
def compare(
    source: SecondNamed,
    contrast: Contrast,
    corpus: TextsOptions,
    attention: ComparedHeads,
    axes: AxisOptions,
    output: CompareOutput,
    picture: PrintedOptions,
    model: WeighedModelOptions,
) -> None:
    """Compare attention heads: all of them, two, or all of them on two texts or in two models.

    The distance of two heads is the Jensen-Shannon divergence of their rows, averaged: 0 nats where both
    look the same way, 0.693 where they share no token.

    Examples:

    attnscope compare "The cat sat on the mat because it was tired."

    attnscope compare "The cat sat on the mat." L1H2 L5H3

    attnscope compare "The cat sat on the mat." --with-text "The dog sat on the mat."

    attnscope compare L1H0 --feeds -m own-causal

    attnscope compare --texts sentences.txt -m my-bert --with-model my-fine-tuned-bert --csv
    """
    if source.text is not None and _names_head(source, corpus, contrast):
        contrast = replace(contrast, heads=[source.text, *(contrast.heads or ())])
        source = replace(source, text=None)
    if contrast.feeds:
        return show_feeds(source, contrast, output, picture, model)
    selection = _select(attention, axes)
    _check(contrast, corpus, source, selection)
    pair = [parse_head(name, attention) for name in contrast.heads or ()]
    given = _texts(corpus, source, model) if corpus.texts else [read_source(source, model)]
    if output.out is not None and output.out.suffix.lower() not in SAVED:
        raise OutputError(
            f"{output.out} cannot be written: a comparison is saved as {', '.join(SAVED)}; "
            "--json and --csv print it"
        )
    check_picture(output.out, picture.cmap, one=False, signed=True)
    opening = None
    if corpus.texts is None:
        anew = replace(attention, layers=None, head=None), replace(contrast, heads=None)
        again, same = reopen(source, model)
        opening = repeat("compare", again, *anew, axes, picture, same)
    one = corpus.texts is None
    saving = output.out is not None
    result = _compare(
        given, selection, pair, contrast, opening, one=one, everything=output.everything, saving=saving
    )
    _print(result, output, picture, model.said)


def _names_head(source: SecondNamed, corpus: TextsOptions, contrast: Contrast) -> bool:
    """Whether what stands first is no text: that comes from elsewhere."""
    if any(each is not None for each in (source.file, source.saved, source.inputs, corpus.texts)):
        return True
    try:
        return (bool(source.image) or contrast.feeds) and bool(Head(str(source.text)))
    except SelectionError:
        return False


def _select(attention: ComparedHeads, axes: AxisOptions) -> Selection:
    """Which heads are meant; a number alone is that head of every layer."""
    if attention.head is None:
        return select(attention, axes)
    number = read_number(attention.head)
    if number is not None and attention.layers is None:
        return select(attention, axes, number=number)
    return select(attention, axes, parse_head(attention.head, attention))


def _check(contrast: Contrast, corpus: TextsOptions, source: SecondNamed, selection: Selection) -> None:
    """Wrong usage for what says nothing together."""
    named = contrast.heads or []
    asked = [bool(named), contrast.with_text is not None, contrast.with_model is not None]
    asked.append(contrast.with_trace is not None)
    if sum(asked) > 1:
        raise typer.BadParameter(
            "choose one of two heads, --with-text, --with-model and --with-trace", param_hint="HEADS"
        )
    if named and len(named) != 2:
        raise typer.BadParameter(
            f"name two heads to compare, like L1H2 L5H3; here {'is' if len(named) == 1 else 'are'} "
            f"{', '.join(named)} (quote a text of several words)",
            param_hint="HEADS",
        )
    if named and not (selection.every_layer and selection.number is None):
        raise typer.BadParameter("the two heads say their layers and numbers themselves", param_hint="--head")
    if corpus.texts is not None and (named or contrast.with_text or contrast.with_trace):
        raise typer.BadParameter(
            "two heads, --with-text and --with-trace take one text", param_hint="--texts"
        )
    if corpus.texts is not None and source.names_one:
        raise typer.BadParameter("give a text or --texts, not both", param_hint="TEXT")
    if source.saved is not None and any(asked[1:3]):
        raise typer.BadParameter(
            "a file has one text and no model: compare it with --with-trace", param_hint="--from"
        )
    if contrast.with_text is not None and selection.number is not None:
        raise typer.BadParameter(
            f"which layer? write L0H{selection.number}, or add --layer", param_hint="--head"
        )
    if not any(asked) and selection.head is not None:
        raise typer.BadParameter(
            "one head alone has nothing to be compared with: name two, or give its number alone",
            param_hint="--head",
        )


def _texts(corpus: TextsOptions, source: SecondNamed, model: WeighedModelOptions) -> list[Source]:
    """The texts of a corpus. Raises ``InputError`` where one cannot be read, or where there is none."""
    from attnscope.storage.corpus import read_corpus

    assert corpus.texts is not None
    entries = read_corpus(corpus.texts, corpus.field)
    texts = []
    for entry in islice(entries.entries(), corpus.limit):
        if entry.fault:
            raise InputError(f"{entries.name}, {entry.where}: {entry.fault}")
        texts.append(Source(source, model, entry.text))
    if not texts:
        raise InputError(f"{entries.name} holds no text")
    return texts


def _compare(
    given: list[Source], selection: Selection, pair: list[Head], contrast: Contrast, opening: str | None,
    *, one: bool, everything: bool, saving: bool,
) -> Compared:  # fmt: skip
    """What is asked, answered by one model or two; ``one`` says that a text was given, and no corpus."""
    from attnscope.analysis.comparison.compare import compare as compare_all
    from attnscope.analysis.comparison.depth import through_layers
    from attnscope.analysis.comparison.models import compare_models
    from attnscope.analysis.comparison.texts import compare_texts
    from attnscope.analysis.comparison.two_heads import compare_heads
    from attnscope.answers.across import compare_passes, of_models, of_texts
    from attnscope.answers.compared import of_depth, of_heads, of_two_heads
    from attnscope.models.kept.trace import open_file

    first, rival = given[0], _rival(given[0], contrast)
    if one and rival is not None:
        (loaded, mine), (other, changed) = open_two(first, rival, saving=saving)
        with reading(loaded, mine, changed):
            if contrast.with_text is not None:
                return of_texts(compare_texts(loaded, mine, changed, selection), opening)
            return of_models(compare_models(loaded, other, [(mine, changed)], selection))
    if one:
        loaded, mine = first.open(saving=saving)
        prepared = [mine]
    else:
        loaded = first.load()
        prepared = [each.prepare(loaded) for each in given]
    with reading(loaded, *prepared):
        if rival is not None:
            other = rival.load()
            both = [(mine, each.prepare(other)) for mine, each in zip(prepared, given, strict=True)]
            return of_models(compare_models(loaded, other, both, selection))
        if pair:
            return of_two_heads(compare_heads(loaded, prepared[0], pair[0], pair[1], selection))
        if contrast.with_trace is not None:
            return compare_passes(loaded, prepared[0], open_file(contrast.with_trace), selection, opening)
        if selection.number is not None and one:
            return of_depth(through_layers(loaded, prepared[0], selection.number, selection))
        return of_heads(compare_all(loaded, prepared, selection), opening, everything=everything)


def _rival(first: Source, contrast: Contrast) -> Source | None:
    """The other text, or the text with the other model, which is loaded as the first one is."""
    if contrast.with_text is not None:
        asked = replace(first.asked, text=contrast.with_text, file=None, line=None, keep=None)
        return read_source(asked, first.model)
    if contrast.with_model is not None:  # a revision is the first one's alone
        name = replace(first.model, model=contrast.with_model, revision=None)
        return replace(first, model=name, asked=replace(first.asked, keep=None))
    return None


def _print(compared: Compared, output: CompareOutput, picture: PrintedOptions, said: Said) -> None:
    """Print a comparison, or save it."""
    from attnscope.cli import answers

    if output.as_json:
        answers.print_json("compare", compared.answer, said)
    elif output.as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(compared.table)
    elif output.out is None:
        answers.print_views(compared.answer, picture)
    elif output.out.suffix.lower() != ".npz":
        answers.save(compared.answer, output.out, picture)
    else:
        from attnscope.storage.arrays.write import save_arrays

        save_arrays(compared.arrays, output.out)
        print(f"saved {output.out}", file=sys.stderr)
