"""What ``spans`` prints with ``--json``."""

from __future__ import annotations

from attnscope.answers.schemas.looks import NOTED, WHERE
from attnscope.answers.schemas.shape import COUNT, MATRIX, NUMBER, TEXT, either, listed, record

PARTS = record(
    "how much the parts of a text look at each other",
    notes=NOTED,
    parts=(
        listed(
            record(
                "a part",
                name=(TEXT, "its name"),
                start=(COUNT, "its first token"),
                stop=(COUNT, "the token after its last"),
            )
        ),
        "the parts of the text",
    ),
    heads=(
        listed(
            record(
                "a head",
                **WHERE,
                weights=(MATRIX, "[part that looks, part that is looked at]"),
                baseline=(MATRIX, "the same on even attention"),
            )
        ),
        "every head",
    ),
)
WRITTEN = record(
    "what each written token looks at (--written)",
    notes=NOTED,
    parts=(listed(TEXT), "the parts of the text, and last what was written"),
    tokens=(listed(TEXT), "the written tokens"),
    heads=(
        listed(
            record(
                "a head",
                **WHERE,
                lookback=(NUMBER, "its lookback ratio (Chuang et al. 2024); 0.5 is even attention"),
                shares=(MATRIX, "[written token, part]"),
            )
        ),
        "every head",
    ),
)
SPANS = either(PARTS, WRITTEN)
