"""A command: how many heads a model has."""

from attnscope.cli.command import command
from attnscope.cli.options import ModelOptions, SourceOptions
from attnscope.cli.source import read_source


@command
def count(source: SourceOptions, model: ModelOptions) -> None:
    """Count the heads that attend on a text.

    Example:

    attnscope count "The cat sat."
    """
    loaded, prepared = read_source(source, model).open(predicting=True)
    record = loaded.run(prepared, [])
    print(sum(site.heads for site in record.sites))
