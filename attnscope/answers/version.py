"""Which schema an answer in JSON is of."""

VERSION = 1
"""A release that takes a field away from any answer, or changes what one means, raises it."""


def name_schema(command: str) -> str:
    """The name of what a command prints with ``--json``, and its version behind it."""
    return f"urn:attnscope:{command}:{VERSION}"
