"""Which tokens of two texts belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True)
class Alignment:
    """Two texts side by side: pairs of positions in reading order.

    ``None`` stands where one text has nothing in this place: ``(3, None)`` left out of the second text,
    ``(None, 3)`` put into it. A pair of positions with different texts is a replacement.
    """

    steps: tuple[tuple[int | None, int | None], ...]

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The positions that have a partner, replaced ones too."""
        return tuple((one, other) for one, other in self.steps if one is not None and other is not None)


def align(one: Sequence[str], other: Sequence[str]) -> Alignment:
    """Align two texts by their longest common runs (difflib's SequenceMatcher).

    As many tokens in the place of as many others are pairs: each replaces one. Where the numbers differ,
    nobody can say which replaces which, and they count as left out and put in.
    """
    steps: list[tuple[int | None, int | None]] = []
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for what, start, stop, begin, end in matcher.get_opcodes():
        if what == "equal" or stop - start == end - begin:
            steps += zip(range(start, stop), range(begin, end), strict=True)
        else:
            steps += [(position, None) for position in range(start, stop)]
            steps += [(None, position) for position in range(begin, end)]
    return Alignment(tuple(steps))


def find_shared_words(one: Sequence[str], other: Sequence[str]) -> tuple[tuple[range, range], ...]:
    """The words that two readings of a text have in common, as ranges of positions in each.

    Where tokenizers cut a text in different places (``tired.`` and ``tired``, ``.``), the pieces that spell
    the same are one word of several positions.
    """
    words: list[tuple[range, range]] = []
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for what, start, stop, begin, end in matcher.get_opcodes():
        if what == "equal":
            words += (
                (range(i, i + 1), range(i - start + begin, i - start + begin + 1)) for i in range(start, stop)
            )
        elif "".join(one[start:stop]) == "".join(other[begin:end]):
            words.append((range(start, stop), range(begin, end)))
    return tuple(words)
