"""``attnscope skill``: what an agent has to know to use this tool."""

from pathlib import Path

from attnscope.cli.command import command

SKILL = Path(__file__).parents[2] / "SKILL.md"


@command
def skill() -> None:
    """Print SKILL.md, which tells an agent how to use all this.

    Which question has which command, its JSON, its cost, and what cannot be done.

    Example:

    attnscope skill > SKILL.md
    """
    print(SKILL.read_text("utf-8"), end="")
