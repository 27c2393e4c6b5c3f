"""What ``compare``, ``check`` and ``export`` print with ``--json``."""

from __future__ import annotations

from attnscope.answers.schemas.looks import NOTED, SITE
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

NATS = "Jensen-Shannon divergence, in nats"
PAIR = record(
    "two heads",
    one=(TEXT, "a head"),
    other=(TEXT, "another one"),
    distance=(NUMBER, NATS),
    error=(NUMBER, "its standard error; 0 where every row was compared"),
)
KINDS = (KIND, "the kind of attention that is compared")
HEADS = (listed(TEXT), "the heads, in the order of rows and columns")
STABILITY = (absent(NUMBER), "mean rank correlation of one text's distances with the others'")

ALL = record(
    "all heads with each other",
    kind=KINDS,
    heads=HEADS,
    distances=(MATRIX, f"[head, head], {NATS}"),
    error=(MATRIX, "their standard errors"),
    groups=(listed(listed(TEXT)), "heads that are alike"),
    silhouette=(NUMBER, "how well the groups are apart"),
    nearest=(listed(PAIR), "the pairs that are most alike"),
    singletons=(listed(PAIR), "heads that are like no other, with the nearest one"),
    plane=(
        record(
            "the heads as points",
            points=(MATRIX, "[head, 2]"),
            explained_variance=(NUMBER, "the share of the distances that the plane shows"),
        ),
        "the heads as points",
    ),
    rows=(record("rows", compared=(COUNT, "compared"), of=(COUNT, "of so many")), "rows that were compared"),
    texts=(COUNT, "texts that it is the mean of"),
    stability=STABILITY,
    notes=NOTED,
)
SERIES = record("a measure", unit=(TEXT, "its unit"), values=(listed(absent(NUMBER)), "a value a layer"))
DEPTH = record(
    "one head number through all layers (--head 3)",
    kind=KINDS,
    heads=HEADS,
    roles=(listed(TEXT), "a role a head"),
    distances=(MATRIX, f"[layer, layer], {NATS}"),
    error=(MATRIX, "their standard errors"),
    series=(named(SERIES), "measures against depth"),
    notes=NOTED,
)
TWO = record(
    "two heads (L1H2 L5H3)",
    kind=KINDS,
    heads=(listed(TEXT, 2), "the two heads"),
    distance=(NUMBER, NATS),
    error=(NUMBER, "its standard error"),
    rows=(listed(record("a row", row=(COUNT, "its token"), distance=(NUMBER, NATS))), "every row"),
    partings=(
        listed(
            record(
                "a token where they part",
                token=(TEXT, "its label"),
                position=(COUNT, "its number"),
                distance=(NUMBER, NATS),
                look_at=(listed(TEXT, 2), "the heaviest key of each head"),
            )
        ),
        "the tokens where they part most",
    ),
    queries=(listed(TEXT), "the rows' texts"),
    keys=(listed(TEXT), "the columns' texts"),
    weights=(listed(listed(listed(absent(NUMBER))), 2), "[head, query, key]; null where masked"),
    notes=NOTED,
)
TEXTS = record(
    "one model on two texts (--with-text)",
    ("difference",),
    kind=KINDS,
    tokens=(listed(listed(absent(TEXT), 2)), "tokens that belong together; null where a text has none"),
    heads=(
        listed(
            record(
                "a head",
                head=(TEXT, "its name"),
                change=(NUMBER, NATS),
                error=(NUMBER, "its standard error"),
            )
        ),
        "how much each head changes",
    ),
    notes=NOTED,
    difference=(listed(listed(absent(NUMBER))), "with --head: its second map minus its first"),
)
MODELS = record(
    "two models (--with-model)",
    kind=KINDS,
    heads=(listed(TEXT), "the heads of the first model"),
    others=(listed(TEXT), "the heads of the second"),
    units=({"enum": ["tokens", "words"]}, "what the rows are"),
    distances=(MATRIX, f"[head, other], {NATS}"),
    error=(MATRIX, "their standard errors"),
    drift=(absent(listed(NUMBER)), "each head from itself, where both models have the same heads"),
    matches=(listed(PAIR), "heads paired so that the sum of distances is smallest"),
    texts=(COUNT, "texts that it is the mean of"),
    stability=STABILITY,
    notes=NOTED,
)
ADDRESS = record(
    "a head",
    layer=(COUNT, "its layer"),
    head=(COUNT, "its number in the layer"),
    kind=(KIND, "its kind of attention"),
)
FEEDS = record(
    "which head feeds which (--feeds)",
    title=(TEXT, "the model"),
    notes=(NOTES, "what to know"),
    feeds=(
        listed(
            record(
                "one way of a pair of heads",
                head=(ADDRESS, "the earlier head"),
                fed=(ADDRESS, "the later head"),
                way=({"enum": ["Q", "K", "V"]}, "what of the later head is made of it"),
                score=(NUMBER, "how much of what one writes is what the other reads"),
                baseline=(NUMBER, "the score of random matrices of the same shapes"),
                scatter=(NUMBER, "the standard deviation of their scores"),
            )
        ),
        "every way of every pair, the one farthest above its baseline first",
    ),
)
COMPARE = either(ALL, DEPTH, TWO, TEXTS, MODELS, FEEDS)

CHECK = record(
    "claims and what became of them",
    holds=(FLAG, "whether every claim holds and no figure changed"),
    claims=(
        listed(
            record(
                "a claim",
                claim=(TEXT, "as it was made"),
                holds=(FLAG, "whether it holds"),
                figures=(TEXT, "what was found"),
            )
        ),
        "every claim",
    ),
    changes=(
        absent(
            listed(
                record(
                    "a figure that changed",
                    head=(TEXT, "its head"),
                    measure=(TEXT, "its measure"),
                    before=(absent(NUMBER), "in the snapshot"),
                    now=(absent(NUMBER), "in this run"),
                )
            )
        ),
        "with --against",
    ),
)

AXIS: tuple[Shape, str] = (absent(COUNT), "its place in texts; null where the axis is no text")
EXPORT = record(
    "the manifest of an export",
    attnscope=(TEXT, "the release that wrote it"),
    command=(absent(TEXT), "what was typed"),
    model=(
        record(
            "the model",
            name=(TEXT, "as it was named"),
            class_=(TEXT, "its Python class"),
            revision=(absent(TEXT), "its commit on the hub"),
            parameters=(COUNT, "its weights"),
            device=(TEXT, "where it ran"),
        ),
        "the model",
    ),
    versions=(named(TEXT), "of what the bytes may depend on"),
    texts=(
        listed(record("a text", tokens=(listed(TEXT), "its tokens"), ids=(listed(WHOLE), "their numbers"))),
        "the texts on the axes",
    ),
    kinds=(named(record("the axes of a kind", queries=AXIS, keys=AXIS)), "by kind of attention"),
    sites=(listed(SITE), "every attention call"),
    notes=NOTED,
    warnings=(NOTES, "what to know about the pictures"),
    files=(
        listed(
            record(
                "a file",
                ("kind", "layer", "head"),
                name=(TEXT, "its name"),
                bytes=(COUNT, "its size"),
                sha256=(TEXT, "its checksum"),
                kind=(KIND, "where a model has several"),
                layer=(COUNT, "the layer that it shows"),
                head=(COUNT, "the head that it shows"),
            )
        ),
        "every file",
    ),
)
