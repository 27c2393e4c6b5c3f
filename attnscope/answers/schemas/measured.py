"""What ``stats`` prints with ``--json``."""

from __future__ import annotations

from attnscope.answers.schemas.looks import HEAD, NOTED
from attnscope.answers.schemas.shape import COUNT, NUMBER, TEXT, either, listed, record

CURVES = record(
    "a measure along the text (--by-position)",
    measure=(TEXT, "the measure"),
    unit=(TEXT, "its unit"),
    edges=(listed(COUNT), "the first row of each run of rows, and where the last run ends"),
    curves=(
        listed(
            record(
                "a head",
                head=(TEXT, "its address, with its kind of attention where there are several"),
                values=(listed(NUMBER), "its average over each run; null where no row of it counts"),
                baseline=(listed(NUMBER), "the same of even attention"),
            )
        ),
        "the heads, the largest mean first",
    ),
    title=(TEXT, "what it is"),
    subtitle=(TEXT, "the model and what ran"),
    notes=NOTED,
)
MEASURED = record(
    "the figures of every head",
    ran=(TEXT, "whether the kernels ran, or the fused pass in their place"),
    notes=NOTED,
    heads=(listed(HEAD), "the heads that are meant, in the order that was asked for"),
)
STATS = either(MEASURED, CURVES)
