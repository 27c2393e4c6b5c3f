"""Run every type in a forked process of its own, with a limit of time and memory."""

from __future__ import annotations

from dataclasses import asdict

from tests.tools.coverage.attempt import attempt
from tests.tools.coverage.result import Result
from tests.tools.coverage.table import table
from tests.tools.survey import Row, survey


def main() -> None:
    """The types that are named, or all."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    def write(rows: list[Row]) -> str:
        return table([Result(**row) for row in rows], transformers.__version__)

    survey("coverage", lambda: CONFIG_MAPPING_NAMES, lambda name: asdict(attempt(name)), write)


if __name__ == "__main__":
    main()
