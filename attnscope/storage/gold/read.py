"""Which file of questions is read how."""

from __future__ import annotations

from pathlib import Path

from attnscope.errors import InputError
from attnscope.storage.gold.conllu import Conllu
from attnscope.storage.gold.json_lines import JsonLines
from attnscope.storage.gold.pharaoh import Pharaoh
from attnscope.storage.gold.texts import GoldFile


def read_gold(path: Path, *, alignments: Path | None = None, coreference: bool = False) -> GoldFile:
    """The questions of a file: ``.conllu``, ``.jsonl``, or texts with ``alignments``.

    Raises ``InputError`` for what is none of these.
    """
    for file in (path, alignments):
        if file is not None and not file.is_file():
            raise InputError(f"no such file: {file}")
    if alignments is not None:
        return Pharaoh(path, ("target → source",), True, alignments)
    kind = path.suffix.lower()
    if coreference and kind != ".conllu":
        raise InputError(f"{path} has no Entity column: coreference is read from a .conllu file")
    if kind == ".conllu":
        if coreference:
            return Conllu(path, ("later → earlier", "earlier → later"), coreference=True)
        return Conllu(path, ("dep → head", "head → dep"))
    if kind in (".jsonl", ".ndjson"):
        return JsonLines(path)
    raise InputError(
        f"cannot tell what questions {path} holds: give a .conllu or .jsonl file, or lines of "
        "'source ||| target' with --alignments FILE"
    )
