"""Word alignments of translations in Pharaoh format: ``0-0 1-2 2?3``, a line for each pair of texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from attnscope.storage.gold.texts import MOST_PAIRS, GoldFile, GoldText, Pair, require_short, words_of
from attnscope.storage.lines import Line, read_lines

LINK = re.compile(r"(\d{1,6})([-?p])(\d{1,6})", re.ASCII)
BETWEEN = "|||"
ALIGNED = "aligned"


@dataclass(frozen=True)
class Pharaoh(GoldFile):
    """Lines of ``source ||| target``, and in the file ``alignments`` for each its links source-target."""

    alignments: Path = Path()

    @property
    def files(self) -> tuple[Path, ...]:
        """The texts, and their links."""
        return self.path, self.alignments

    def texts(self) -> Iterator[GoldText]:
        """A pair of texts a line."""
        lines = zip_longest(read_lines(self.path), read_lines(self.alignments), fillvalue=Line(0, "", 0))
        for line, links in lines:
            where = f"line {line.number or links.number:,}"
            try:
                if not line.number or not links.number:
                    both = self.path, self.alignments
                    short, long = both if links.number else both[::-1]
                    raise ValueError(f"{short} ends before {long}: each text needs its line of links")
                if line.fault or links.fault:
                    raise ValueError(line.fault or links.fault)
                if line.text.strip() or links.text.strip():
                    yield _read(line.text, links.text, where, line.done)
            except ValueError as error:
                yield GoldText(where, "", done=line.done, fault=str(error))
            if not line.number or not links.number:
                return


def _read(line: str, links: str, where: str, done: int) -> GoldText:
    source, _, target = (part.strip() for part in line.partition(BETWEEN))
    if not source or not target or BETWEEN in target:
        raise ValueError(f"write source {BETWEEN} target")
    require_short(source)
    require_short(target)
    words, target_words = words_of(source), words_of(target)
    pairs = []
    linked = links.split()
    if len(linked) > MOST_PAIRS:
        raise ValueError(f"it has {len(linked):,} links, and a text may have {MOST_PAIRS:,}")
    for link in linked:
        match = LINK.fullmatch(link)
        if match is None:
            raise ValueError(f"{link[:20]!r} is no link: write 0-0, or 0?0 for a possible one")
        one, other = int(match[1]), int(match[3])
        if one >= len(words) or other >= len(target_words):
            raise ValueError(
                f"the link {link} is outside of {len(words):,} source and {len(target_words):,} target words"
            )
        pairs.append(Pair((other,), (one,), ALIGNED, match[2] == "-"))
    return GoldText(where, source, words, tuple(pairs), done, target, target_words)
