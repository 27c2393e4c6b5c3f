"""Check every model in a process of its own, with a limit of time and memory, and write the table."""

import torch

from tests.models.images import can_import_torchvision
from tests.tools.libraries.check import VERDICTS, check
from tests.tools.libraries.made import all_models
from tests.tools.survey import Row, grid, report, survey

HEAD = """# Libraries beside transformers

Made by `python -m tests.tools.libraries` (see its folder): small random models of libraries that people use,
run plainly, observed, and once more under an oracle that has no part in the capture: the formula of torch's
kernels in float64, and the results of all softmaxes. Of each kind of map in a model (as many heads, queries
and keys) the first two layers are compared, whole.

- **exact**: no weight differs from the oracle's by more than 1e-5, text by text, head by head, row by row.
- **placed**: exact in another layout: its rows are the oracle's (windows, chunks, blocks), put at their
  places among all tokens. That the places are right the module says itself: a change of token j moves just
  the rows that give j a weight. **not told**: the same, where the modules around it mix by convolutions, too.
- **proved**: no result of torch's own functions holds its rows (weights that were written out, mixed once
  more, or without the keys of padding); weights @ values are the output, call by call. Where its rows stand
  is not looked at here.
- **parts**: exact maps of one window, frame or slice each, and a sentence beside them says so.
- **named**: layers of which nothing is shown, with the reason.
- **silently wrong**: anything else that was captured. **missed**: a kernel without a map or a name.

"""


COLUMNS = "model, same output, attention calls, exact, placed, not told, proved, parts, named"


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
        "kernels missed in silence": sum(len(row["missed"]) for row in ran),
    }
    wrong = [row for row in ran if row["wrong"] or row["missed"] or not row["identical"]]
    says = {
        "Silently wrong": {row["name"]: "; ".join([*row["wrong"], *row["missed"]]) for row in wrong},
        "Named": {row["name"]: "; ".join(row["named"]) for row in ran if row["named"]},
        "Did not run": {row["name"]: row["note"] for row in rows if row not in ran},
    }
    every = "## All models that ran\n", *grid([COLUMNS.split(", "), *map(cells, ran)])
    return report(HEAD, counts, says, every)


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
