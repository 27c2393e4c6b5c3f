"""Check every model in a process of its own, with a limit of time and memory, and write the table."""

from __future__ import annotations

from dataclasses import asdict

import torch

from tests.models.torchvision_parts import can_import_torchvision
from tests.tools.coverage.attempt import first_line
from tests.tools.libraries.check import Checked, check
from tests.tools.libraries.made import Make, all_models
from tests.tools.libraries.table import table
from tests.tools.survey import survey


def attempt(name: str, make: Make) -> Checked:
    """One model, built and checked; what fails is said."""
    try:
        torch.manual_seed(0)
        model, arguments, inputs = make()
    except Exception as error:
        return Checked(name, note=f"it cannot be built: {first_line(error)}")
    try:
        return check(name, model.eval(), arguments, inputs)
    except Exception as error:
        return Checked(name, note=f"it fails: {first_line(error)}")


def main() -> None:
    """The models that are named, or all."""
    can_import_torchvision()  # timm's models ask for it
    made = all_models()
    survey(
        "libraries",
        lambda: made,
        lambda name: asdict(attempt(name, made[name])),
        lambda rows: table([Checked(**row) for row in rows]),
        seconds=120,
        memory=10 << 30,
    )


if __name__ == "__main__":
    main()
