"""Questions with known answers, read from a file."""

from dataclasses import dataclass
from pathlib import Path

from attnscope.cli.options.declare import flag, option

GOLD = "Questions with known answers"


@dataclass(frozen=True, kw_only=True)
class GoldOptions:
    """The file, and which of its questions are asked."""

    gold: Path | None = option(
        "Questions with their answers: a treebank (.conllu), JSON lines (.jsonl), or lines of "
        "'source ||| target' with --alignments. A JSON line is "
        '{"text": "The cat sat.", "pairs": [[2, 1, "subject"]]}: from, to, label; words are numbered from 0, '
        'or characters: [4, 7]. With a "target", a translation, from is a word of that.',
        panel=GOLD,
    )
    alignments: Path | None = option(
        "With --gold: a line of links for each of its lines, in Pharaoh format: 0-0 1-2, source first; "
        "2?3 is a possible link.",
        panel=GOLD,
    )
    relation: str | None = option(
        "Ask for these labels alone, nsubj,obj; nsubj is nsubj:pass, too.", panel=GOLD
    )
    coreference: bool = flag(
        "Ask a treebank which earlier mention is meant (Entity in MISC), up to 128 words at a time.",
        panel=GOLD,
    )
    held_out: bool = flag("Choose heads on every other text, and score them on the rest.", panel=GOLD)
    limit: int | None = option("Stop after so many texts.", min=1, panel=GOLD)
    strict: bool = flag("End at the first text that cannot be read, not skip it.", panel=GOLD)
    checkpoint: Path | None = option(
        "Keep the sums in this file; the same command goes on from there.", panel=GOLD
    )
