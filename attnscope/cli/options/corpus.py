"""Many texts: where they are read from, and what is done with those that cannot be read."""

from dataclasses import dataclass
from pathlib import Path

from attnscope.cli.options.declare import MANY, flag, option


@dataclass(frozen=True, kw_only=True)
class TextsOptions:
    """A corpus, or the first texts of one."""

    texts: Path | None = option(
        "Read a corpus: a text a line (.txt), JSON lines (.jsonl), .parquet, or a folder of .txt files.",
        panel=MANY,
    )
    field: str = option(
        "Where .jsonl and .parquet keep the text; text if not given.", panel=MANY, default="text"
    )
    limit: int | None = option("Stop after so many texts.", min=1, panel=MANY)


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(TextsOptions):
    """A corpus that is measured as a whole, and may be stopped and gone on with."""

    strict: bool = flag("End at the first text that cannot be read, not skip it.", panel=MANY)
    checkpoint: Path | None = option(
        "Keep the sums in this file; the same command goes on from there.", panel=MANY
    )
