"""Check every model in its own process, with limits on time and memory, and write the table."""

import torch

from tests.models.images import can_import_torchvision
from tests.tools.libraries.check import VERDICTS, check
from tests.tools.libraries.made import all_models
from tests.tools.survey import Row, grid, report, survey

COLUMNS = "model, same output, attention calls, exact, placed, place unconfirmed, proved, parts, named"


def table(rows: list[Row]) -> str:
    """Counts, then a row for each model, then what is named."""
    ran = [row for row in rows if "maps" in row]
    maps = {name: sum(row["maps"].get(verdict, 0) for row in ran) for verdict, name in VERDICTS.items()}
    maps["**silently wrong**"] = sum(len(row["wrong"]) for row in ran)
    counts = {
        "models": len(rows),
        "built and run": len(ran),
        "of those, output bit-identical under observation": sum(row["identical"] for row in ran),
        "of those, with attention that is shown": sum(row["sites"] > 0 for row in ran),
        "of those, with layers that are named instead": sum(bool(row["named"]) for row in ran),
        "maps compared": sum(maps.values()),
        **{f"of those, {name}": count for name, count in maps.items()},
        "kernels missed": sum(len(row["missed"]) for row in ran),
    }
    wrong = [row for row in ran if row["wrong"] or row["missed"] or not row["identical"]]
    says = {
        "Silently wrong": {row["name"]: "; ".join([*row["wrong"], *row["missed"]]) for row in wrong},
        "Named": {row["name"]: "; ".join(row["named"]) for row in ran if row["named"]},
        "Did not run": {row["name"]: row["note"] for row in rows if row not in ran},
    }
    every = "## All models that ran\n", *grid([COLUMNS.split(", "), *map(cells, ran)])
    return report("libraries", counts, says, every)


def cells(row: Row) -> list[object]:
    counts = [row["maps"].get(verdict, 0) for verdict in VERDICTS]
    same = "yes" if row["identical"] else "**no**"
    return [f"`{row['name']}`", same, row["sites"], *counts, len(row["named"])]


def main() -> None:
    can_import_torchvision()  # timm's models ask for it
    made = all_models()

    def work(name: str) -> Row:
        torch.manual_seed(0)
        model, arguments, inputs = made[name]()
        return check(name, model.eval(), arguments, inputs)

    survey("libraries", lambda: made, work, table, seconds=120)


if __name__ == "__main__":
    main()
