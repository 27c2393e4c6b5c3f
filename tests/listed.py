"""A corpus of texts that are in memory already."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

from attnscope.storage.corpus import Corpus, CorpusText


class Listed(Corpus):
    """A text each; an empty one cannot be read."""

    def __init__(self, texts: Sequence[str], name: str = "the list") -> None:
        self.name, self.texts, self.size = name, texts, len(texts)

    def entries(self) -> Iterator[CorpusText]:
        """One entry a text."""
        for number, text in enumerate(self.texts, 1):
            fault = "" if text.strip() else "the text is empty"
            yield CorpusText(f"text {number:,}", text, fault, number)

    def fingerprint(self) -> str:
        """A hash of all texts."""
        return hashlib.sha256(json.dumps(list(self.texts)).encode()).hexdigest()
