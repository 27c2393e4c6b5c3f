"""``attnscope explain``: what a word on the screen means."""

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


@command
def explain(options: WordOptions) -> None:
    """Explain a word on the screen: what it is, its formula and its source.

    Without a word: every measure with its unit and formula, then the other words.

    Examples:

    attnscope explain induction
    attnscope explain sharp
    attnscope explain
    """
    from attnscope.measures import explain as explain_word
    from attnscope.measures import list_words

    if (options.word or "").startswith("rule("):
        import attnscope.questions.rules  # noqa: F401  # declares these measures

    print(list_words() if options.word is None else explain_word(options.word))
