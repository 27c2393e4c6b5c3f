"""Retired spellings, each with the sentence that answers it."""

from __future__ import annotations

from collections.abc import Mapping

RETIRED: Mapping[str, str] = {
    "--relative": "--relative was retired: compare what --token looks at under two texts, each with --json",
    "--writes": "show --writes is now a command: attnscope logits TEXT (--target, --against, --head)",
    "--against": "--against belongs to check (a snapshot) and to logits (another word)",
    "--ablate": "show --ablate is now a command: attnscope ablate TEXT --head L2H1",
    "--ablation": "stats --ablation is now a command: attnscope ablate (with --texts, also --mean)",
    "--importance": "stats --importance is now a command: attnscope ablate --importance",
    "--neutral": "--neutral was retired with --relative: run show --token on the neutral text, too",
    "patch --from": "the heads of a path are now named by --head, and a trace holds no model to patch",
    "sounds in --gold": "--gold of timed words was retired: align --rank finds the heads that follow a sound",
    "--fresh": "--fresh is now --no-cache",
    "--feeds": "--feeds is now --composition",
    "--install-completion": "--install-completion is now --completion bash, zsh or fish",
    "--at": "ablate --at was retired: cut 'it -> *' TEXT --how zero takes out what heads give at it",
    "--rows": "--rows belongs to stats: ablate leaves the predictions of the whole text",
    "--map": "compare --map was retired: track FOLDER OTHER --texts FILE --measure NAME has each change",
    "--all": "compare --all was retired: -o saves every head on a plane, --json has the singletons",
    "--guide": "--guide was retired: no head is trained towards a role; stats names the roles",
    "--guidance": "--guidance was retired with --guide",
    ".gif": "animated pictures were retired: export --format png writes one a layer",
    ".apng": "animated pictures were retired: export --format png writes one a layer",
}
"""One row per retired option, file suffix, or value."""


def tell_retired(sentence: str, *spellings: str) -> str:
    """What is wrong with these spellings, and what replaced those that once worked."""
    return "; ".join((sentence, *(RETIRED[each] for each in spellings if each in RETIRED)))
