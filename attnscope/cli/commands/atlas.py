"""``attnscope atlas``: every head of a model over a corpus, as a page and as files."""

from pathlib import Path
from typing import Annotated

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import Group, command
from attnscope.cli.commands.examples import MOST_LISTED, ReadingOptions, read_examples
from attnscope.cli.corpus import CorpusOptions
from attnscope.cli.messages import notify


class AtlasOutput(Group):
    """Where the atlas goes."""

    out: Annotated[Path, Option("--out", "-o", help="The folder; created if missing.")]
    top: Annotated[int, Option(help="Rows of each head.", metavar="N", min=1, max=MOST_LISTED)] = 10
    force: Annotated[bool, Option(help="Overwrite existing files.")] = False


@command
def atlas(
    output: AtlasOutput,
    corpus: CorpusOptions,
    reading: ReadingOptions,
    model: options.WeightedModelOptions,
) -> None:
    """Write an atlas of all heads over a corpus: a page and files.

    index.html needs no other file and no network: all heads in a plane where near ones attend alike, or by
    their scores; a search; and for each head what attnscope examples shows. config.json, scatter_data.json
    and heads/L5H1.json have the fields that HeadVis reads, and what attnscope examples --json prints.

    Examples:

    attnscope atlas --texts sample_inputs/sentences.txt -o atlas
    """
    from attnscope.models.identity import describe_input
    from attnscope.questions.processes import torchrun_processes
    from attnscope.records import plain
    from attnscope.render.page.atlas import refuse_full, save_atlas

    if not output.force:
        refuse_full(output.out)
    result = read_examples(reading, corpus, model, top=output.top, maps=True)
    if not torchrun_processes().number:
        count = save_atlas(result, output.out, plain(describe_input(*result.read)))
        notify(f"saved {count:,} files in {output.out}: open {output.out / 'index.html'}")
