"""Tables as Parquet: the rows of --csv, with types."""

import csv
import io
import sys

import pytest

from tests.questions.gold import treebank

parquet = pytest.importorskip("pyarrow.parquet")
TEXT = "The cat sat on the mat because it was tired."
COMMANDS = {
    "stats": ["stats", TEXT, "--sort", "previous", "--top", "5"],
    "stats --texts": ["stats", "--texts", "texts.txt"],
    "find": ["find", "it -> cat", TEXT],
    "compare": ["compare", TEXT],
    "compare --composition": ["compare", "--composition", "-m", "own-causal"],
    "find --gold": ["find", "--gold", "bank.conllu"],
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_parquet_has_the_rows_of_csv_with_types(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text(f"{TEXT}\nIt slept.\n")
    (tmp_path / "bank.conllu").write_text(treebank.conllu(), "utf-8")
    saved = run(*COMMANDS[name], "-o", "a.parquet")
    assert saved.code == 0, saved.err
    table = parquet.read_table(tmp_path / "a.parquet")
    names, *rows = csv.reader(io.StringIO(run(*COMMANDS[name], "--csv", "--raw-csv").out))
    assert table.column_names == names
    found = [["" if cell is None else str(cell) for cell in row.values()] for row in table.to_pylist()]
    for mine, printed in zip(found, rows, strict=True):
        for one, other in zip(mine, printed, strict=True):
            assert one == other or float(one) == pytest.approx(float(other), rel=1e-6)
    kinds = {str(field.type) for field in table.schema}
    assert {"double", "string"} <= kinds


def test_parquet_refuses_what_it_cannot_hold(run, tmp_path, monkeypatch):
    file = tmp_path / "a.parquet"
    run("stats", TEXT, "--map", "entropy", "-o", file).refuses("a .parquet file holds the table")
    run("stats", TEXT, "-o", file, "--cmap", "viridis").refuses("requires a picture: add -o FILE.png")
    run("compare", TEXT, "-o", file, "--scatter").refuses("a .parquet file holds the table")
    run("flow", TEXT, "-o", file).refuses("its name must end in")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run("stats", TEXT, "-o", file).refuses("needs the package pyarrow: pip install pyarrow")
    assert not file.exists()
