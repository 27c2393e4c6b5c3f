"""Tables in the terminal."""

import io

from rich.console import Console

from attnscope.render.pixels import print_views
from attnscope.render.terminal.charts import MOST_ROWS
from attnscope.views.table import Column, Table


def printed(count):
    console = Console(file=io.StringIO(), width=80)
    rows = tuple((f"row {number}",) for number in range(count))
    print_views([Table((Column("name"),), rows)], console)
    return console.file.getvalue()


def test_a_table_prints_as_many_rows_as_anybody_reads_and_says_so():
    assert f"row {MOST_ROWS - 1}\n" in printed(MOST_ROWS)
    assert "rows;" not in printed(MOST_ROWS)
    long = printed(MOST_ROWS + 5)
    assert f"row {MOST_ROWS}\n" not in long
    assert "· the first 2,000 of 2,005 rows; --csv and --json have all" in long
