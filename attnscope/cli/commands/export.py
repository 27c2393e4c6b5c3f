"""``attnscope export``: everything about a text as files in a folder."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Option

from attnscope.cli import options
from attnscope.cli.command import command, refuse, refuse_without, write
from attnscope.cli.deliver import print_answer
from attnscope.cli.messages import notify, stop, warn
from attnscope.cli.source import explain_again, read_source


class ExportedHeads(options.LayerOptions):
    """Layers and heads, several of each."""

    head: Annotated[
        str | None,
        Option(help="Pictures of these heads of each layer: 0-3,7.", rich_help_panel=options.WHERE),
    ] = None
    token: Annotated[str | None, Option(help="One token of each head, not whole heads.")] = None
    keep_mass: Annotated[
        float | None,
        Option(
            help="With --token: mark the fewest keys with this share.",
            rich_help_panel=options.WHERE,
            min=0,
            max=1,
        ),
    ] = None


class ExportOutput(options.NumbersOptions):
    """Where the files go, and their formats."""

    out: Annotated[Path, Option("--out", "-o", help="The folder; created if missing.")]
    format: Annotated[
        str,
        Option(help="png, svg, pdf, html (pictures, a page), npz, safetensors, json, csv (weights)."),
    ] = "png"
    force: Annotated[bool, Option(help="Overwrite existing files.")] = False


@command
def export(
    source: options.BatchSource,
    attention: ExportedHeads,
    axes: options.MapOptions,
    output: ExportOutput,
    picture: options.PictureOptions,
    model: options.MixedModelOptions,
) -> None:
    """Write every head to files: pictures, pages or arrays.

    A picture of each head (L05H03.png), of each layer (L05.png) and of all heads (overview.png), or all heads
    in one file of data (heads.npz); and manifest.json, which says what they came from, with a checksum of
    each file. The same command writes the same bytes.

    Examples:

    attnscope export "The cat sat on the mat." -o pictures
    attnscope export "The cat sat." -o paper --layer 1 --format pdf,svg
    attnscope export -f sample_inputs/article.txt --truncate -o data --format npz
    attnscope export --image sample_inputs/cat.png -m facebook/dinov2-base -o cat
    """
    from attnscope.questions.processes import torchrun_processes

    layers = options.parse_numbers(attention.layers, "--layer")
    refuse_without(("keep_mass", "token"))
    one_file = output.out.suffix.lower() in (*options.PICTURES, *options.WHOLE)
    refuse(one_file, "--out", f"names a folder; to write one file: attnscope show ... -o {output.out}")
    refuse(torchrun_processes().count > 1, "--out", "several processes would write the same files: start one")
    pass_source = read_source(source, model)
    formats = tuple(dict.fromkeys(part.strip().lower() for part in output.format.split(",")))
    from attnscope.storage.folder import ExportPlan, count_unfinished, refuse_existing

    heads = options.parse_numbers(attention.head, "--head")
    contents = ExportPlan(formats, layers, heads)
    if not output.force:
        refuse_existing(output.out, contents)
    from attnscope.render.export import save_export

    selection = options.select(attention, axes, token=attention.token)
    command_line = write("export", source, attention, axes, replace(output, force=False), picture, model)
    # cells of named heads open their terms, which a kept pass has no gradients for
    opened = attention.head is not None and "html" in contents.wholes
    with pass_source.open_with_progress(cached=not opened) as (loaded, prepared):
        try:
            manifest = save_export(
                *(loaded, prepared, selection, output.out),
                formats=formats,
                heads=contents.heads,
                **vars(picture),
                force=output.force,
                mass=attention.keep_mass,
                command=command_line,
                explain=explain_again(source, model),
            )
        except KeyboardInterrupt:
            contents_now = "nothing unfinished"
            if (count := count_unfinished(output.out, contents)) is not None:
                contents_now = f"{count:,} complete files; the same command resumes"
            stop(f"{output.out} holds {contents_now}")
    for warning in manifest["warnings"]:
        warn(warning)
    count = len(manifest["files"])
    notify(f"saved {count:,} file{'s' * (count != 1)} and manifest.json in {output.out}")
    if output.as_json:
        print_answer("export", manifest, (loaded, prepared))
