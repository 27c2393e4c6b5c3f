"""Word alignments of translations in Pharaoh format: ``0-0 1-2 2?3``, a line for each pair of texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from attnscope.storage.gold.texts import GoldFile, GoldText, Pair, lines_of, words_of

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
        nothing = (0, "", 0)
        lines = zip_longest(lines_of(self.path), lines_of(self.alignments), fillvalue=nothing)
        for (number, line, done), (other, links, _) in lines:
            where = f"line {number or other:,}"
            try:
                if not number or not other:
                    short, long = (self.alignments, self.path) if number else (self.path, self.alignments)
                    raise ValueError(f"{short} ends before {long}: each text needs its line of links")
                if line is None or links is None:
                    raise ValueError("it is no UTF-8 text")
                if line.strip() or links.strip():
                    yield _read(line, links, where, done)
            except ValueError as error:
                yield GoldText(where, "", done=done, fault=str(error))
            if not number or not other:
                return


def _read(line: str, links: str, where: str, done: int) -> GoldText:
    source, _, target = (part.strip() for part in line.partition(BETWEEN))
    if not source or not target or BETWEEN in target:
        raise ValueError(f"write source {BETWEEN} target")
    words, target_words = words_of(source), words_of(target)
    pairs = []
    for link in links.split():
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
