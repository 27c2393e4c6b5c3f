"""What ``show``, ``info`` and ``find`` print with ``--json``."""

from __future__ import annotations

from typing import Any

from attnscope.answers.schemas.shape import (
    COUNT,
    FLAG,
    KIND,
    MATRIX,
    NOTES,
    NUMBER,
    TEXT,
    WHOLE,
    Shape,
    absent,
    either,
    listed,
    named,
    record,
)
from attnscope.answers.schemas.writes import WRITES

NOTED = (NOTES, "what to know about the model, the text and the answer")

CALL: dict[str, tuple[Shape, str]] = {
    "name": (TEXT, "the module's path"),
    "call": (COUNT, "which call of the module in this pass, from 0"),
    "kind": (KIND, "which sequence looks at which"),
    "layer": (COUNT, "the layer's number within its kind, from 0"),
    "heads": (COUNT, "query heads"),
    "key_heads": (COUNT, "key heads; fewer in grouped-query attention"),
    "queries": (COUNT, "rows"),
    "keys": (COUNT, "columns"),
    "kernel": (TEXT, "what computed the layer's output"),
    "source": ({"enum": ["kernel", "recomputed", "softmax", "module", "file"]}, "how the weights were had"),
    "dtype": (TEXT, "the type that it computed in"),
    "window": (absent(COUNT), "the sliding window that the kernel was told of"),
    "difference": (
        absent(NUMBER),
        "how far weights times values miss the kernel's output, of its largest value; null: not compared",
    ),
    "unproved": (absent(TEXT), "why weights times values were compared with nothing; null where they were"),
}
SITE = record("an attention call", **CALL)
FIGURE = record(
    "a measure of a head, averaged over the rows that count",
    ("error", "texts"),
    value=(NUMBER, "the figure"),
    baseline=(NUMBER, "the same on even attention over the open keys"),
    rows=(COUNT, "rows that counted"),
    error=(absent(NUMBER), "standard error over the texts of a corpus"),
    texts=(COUNT, "texts that had such rows"),
)
ROLE = record(
    "the strongest pattern of a head",
    name=(TEXT, "the role; attnscope stats --explain says what it means"),
    score=(NUMBER, "the pattern's figure"),
    baseline=(NUMBER, "the same on even attention"),
    sentence=(TEXT, "the role in words"),
)
IMPORTANCE = record(
    "how much the model's predictions depend on a head",
    value=(NUMBER, "the slope of the loss at a gate on the head"),
    texts=(COUNT, "texts that it is the mean of"),
    error=(absent(NUMBER), "standard error over the texts"),
)
REMOVAL = record(
    "how much the loss of the model's predictions rises without a head",
    value=(NUMBER, "the rise, in nats"),
    texts=(COUNT, "texts that it is the mean of"),
    error=(absent(NUMBER), "standard error over the texts"),
    loss=(NUMBER, "the loss without the head"),
)
HEAD = record(
    "a head and its figures",
    ("importance", "ablation"),
    kind=(KIND, "its kind of attention"),
    layer=(COUNT, "its layer"),
    head=(COUNT, "its number in the layer"),
    role=(absent(ROLE), "its role; null where no row counted"),
    figures=(named(FIGURE), "by measure; attnscope stats --list names them"),
    absent=(named(TEXT), "by measure that does not exist here, why"),
    importance=(IMPORTANCE, "with --importance"),
    ablation=(REMOVAL, "with --ablation"),
)
BARS = absent(
    listed(
        record(
            "a token and its weight",
            ("box",),
            text=(TEXT, "its label"),
            position=(COUNT, "its number"),
            weight=(NUMBER, "its weight"),
            box=(listed(NUMBER), "left, top, right and bottom of a part of a picture, in its pixels"),
        )
    )
)
CELLS = (absent(MATRIX), "a weight a patch")
LIKELY = listed({"type": "array", "prefixItems": [TEXT, NUMBER], "items": False})

OVERVIEW = record(
    "every head",
    notes=NOTED,
    sites=(listed(SITE), "every attention call"),
    heads=(listed(HEAD), "every head that is meant"),
)
ONE_HEAD = record(
    "one head (--head)",
    notes=NOTED,
    site=(SITE, "its attention call"),
    head=(HEAD, "its figures"),
    queries=(listed(TEXT), "the rows' texts"),
    keys=(listed(TEXT), "the columns' texts"),
    weights=(listed(listed(absent(NUMBER))), "[query, key], rounded to 7 digits; null where masked"),
)
ONE_TOKEN = record(
    "one token (--token)",
    ("patches",),
    notes=NOTED,
    which=(TEXT, "the head, or those that it is the mean of"),
    token=(record("the token", text=(TEXT, "its label"), position=(COUNT, "its number")), "which it is"),
    looks_at=(BARS, "the heaviest of its row; null where it has none"),
    looked_at_by=(BARS, "the heaviest of its column; null where it has none"),
    patches=(
        listed(
            record(
                "on the patches of an image",
                picture=(TEXT, "which"),
                looks_at=CELLS,
                looked_at_by=CELLS,
            )
        ),
        "with images: one each, of many those that have most",
    ),
)
ABLATION = record(
    "a head taken away (--ablate)",
    head=(TEXT, "the head"),
    kind=(KIND, "its kind of attention"),
    title=(TEXT, "the model and what ran"),
    changed=(
        listed(
            record(
                "a prediction, the one that changed most first",
                token=(TEXT, "the token in whose place it is made"),
                wanted=(TEXT, "the token that stands in the text"),
                position=(COUNT, "its number"),
                divergence=(NUMBER, "KL divergence, in nats"),
                before=(LIKELY, "the likeliest tokens with the head, and their probabilities"),
                after=(LIKELY, "the likeliest tokens without it"),
                right=(listed(NUMBER, 2), "the wanted token's probability with and without the head"),
            )
        ),
        "every prediction",
    ),
    divergence=(NUMBER, "the mean KL divergence, in nats"),
    losses=(listed(NUMBER, 2), "the loss with and without the head"),
    notes=NOTED,
)
SHOW = either(OVERVIEW, ONE_HEAD, ONE_TOKEN, ABLATION, WRITES)

LAYER = {"name": (TEXT, "a module's path"), "layer": (COUNT, "its number"), "reason": (TEXT, "why")}
SIGHTING: dict[str, Any] = CALL | {
    "row_sums": (listed(NUMBER, 2), "the smallest and the largest sum of a row"),
    "own_report": ({"enum": ["right", "wrong", "none"]}, "whether the model itself reports these weights"),
    "own_fault": (absent(TEXT), "what it reports in their place"),
}
SURVEY = record(
    "every attention call of a model",
    notes=NOTED,
    sites=(listed(record("an attention call", **SIGHTING)), "every call"),
    without=(listed(record("a layer without attention", **LAYER)), "layers without attention"),
    failures=(
        listed(record("a failure", name=(TEXT, "a module's path"), reason=(TEXT, "what went wrong"))),
        "where the recording failed",
    ),
)
PLACE = {
    "name": (TEXT, "a module's path"),
    "kind": (TEXT, "what it is"),
    "layer": (absent(WHOLE), "its number"),
}
MIXER: dict[str, tuple[Shape, str]] = {
    "path": (TEXT, "its path"),
    "type": (TEXT, "its Python class"),
    "layer": (absent(COUNT), "the number in its path, if there is just one"),
    "way": (absent(TEXT), "by what it mixes tokens, where that is known"),
}
AUDIT = record(
    "whether all mixing of tokens is shown (--audit)",
    complete=(FLAG, "whether it is"),
    sentences=(NOTES, "the same in words"),
    held=(listed(record("an attention call", **PLACE)), "calls whose output was held still"),
    mixers=(listed(record("a module", **MIXER)), "modules through which another token still moves"),
)
INFO = either(SURVEY, AUDIT)

WHERE: dict[str, tuple[Shape, str]] = {
    "layer": (COUNT, "its layer"),
    "head": (COUNT, "its number in the layer"),
    "kind": (KIND, "its kind of attention"),
}
FOUND = record(
    "a head's answer",
    **WHERE,
    weight=(NUMBER, "how much the rows look at the keys"),
    baseline=(NUMBER, "the same on even attention"),
    rank=(absent(NUMBER), "the place of the keys among all words"),
    rows=(COUNT, "rows that counted"),
)
FIND = record(
    "heads by how much of one part of a text looks at another",
    notes=NOTED,
    questions=(
        listed(
            record(
                "a question",
                question=(TEXT, "as it was asked"),
                notes=(NOTES, "what to know about it"),
                heads=(listed(FOUND), "every head, the one that looks most first"),
            )
        ),
        "every question",
    ),
)
