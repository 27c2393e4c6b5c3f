"""``attnscope explain``: what a word on the screen means."""

import re
import textwrap
from shutil import get_terminal_size
from typing import Annotated

from typer import Argument

from attnscope.cli.command import Group, command, offering
from attnscope.cli.options import explained_names


class WordOptions(Group):
    """The word."""

    word: Annotated[
        str | None,
        Argument(
            help="A measure, a role, a unit ...; default: list them all.",
            autocompletion=offering(explained_names),
        ),
    ] = None


def explain_option(word: str) -> str:
    """What an option of that name does, and in which commands; empty if there is none."""
    from attnscope.cli import all_commands

    name, owners = f"--{word.lstrip('-').replace('_', '-')}", dict[str, list[str]]()
    for each in all_commands():
        for one in each.params:
            if name in one.opts:
                owners.setdefault(one.help, []).append(each.name)
    lines = [f"{name} (an option of {', '.join(names)}): {sentence}" for sentence, names in owners.items()]
    return "\n".join([*lines, "attnscope COMMAND --help-all lists every option."] if lines else [])


def fit(text: str, columns: int) -> str:
    """Text whose lines are at most so long, if any is longer: each with the indentation of its block."""
    if max(map(len, text.splitlines())) <= columns:
        return text
    joined = re.sub(r"\n {3,}(?=\S)", " ", text)  # lines that go on
    blocks = [
        textwrap.wrap(line, columns, subsequent_indent=" " * (12 if line.startswith("  ") else 2))
        for line in joined.splitlines()
    ]
    return "\n".join(line for lines in blocks for line in lines or [""])


@command
def explain(options: WordOptions) -> None:
    """Explain a word on the screen: what it is, its formula and its source.

    Without a word: every measure with its unit and formula, then the other words.

    Examples:

    attnscope explain induction
    attnscope explain sharp
    attnscope explain
    """
    from attnscope.errors import SelectionError
    from attnscope.measures import explain as explain_word
    from attnscope.measures import list_words

    word = options.word
    if (word or "").startswith(("rule(", "find(")):
        import attnscope.questions.rules  # noqa: F401  # declares these measures
    try:
        text = list_words() if word is None else explain_word(word)
    except SelectionError:
        if not (text := explain_option(word or "")):
            raise
    print(text if word is None else fit(text, get_terminal_size((120, 24)).columns))
