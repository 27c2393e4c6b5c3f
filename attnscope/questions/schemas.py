"""JSON Schema in few words: each field is a shape and a sentence on what it holds."""

from __future__ import annotations

from typing import Any, TypeAlias

from attnscope.questions.across import ModelComparison, TextComparison
from attnscope.questions.align import MonotoneHeads, SpokenText
from attnscope.questions.answer import name_schema
from attnscope.questions.compare import Comparison, HeadComparison
from attnscope.questions.composition import Feeds
from attnscope.questions.depth import DepthComparison
from attnscope.questions.find import FindResult
from attnscope.questions.flow import Flow
from attnscope.questions.gold import GoldResult
from attnscope.questions.spans import SpanMaps, WrittenAttention
from attnscope.records import Meaning, schema, shaped

Shape: TypeAlias = "dict[str, Any]"

TEXT: Shape = {"type": "string"}
COUNT: Shape = {"type": "integer", "minimum": 0}
WHOLE: Shape = {"type": "integer"}
NUMBER: Shape = {"type": ["number", "null"], "description": "null where it is no finite number"}
FLAG: Shape = {"type": "boolean"}
KIND: Shape = {"enum": ["encoder", "decoder", "cross"]}
NOTES: Shape = {"type": "array", "items": TEXT}


def described(shape: Shape, description: str) -> Shape:
    """A shape with what it holds, behind what it says already."""
    return shape | {
        "description": "; ".join([description, *([said] if (said := shape.get("description")) else [])])
    }


def record(description: str, optional: tuple[str, ...] = (), /, **fields_: tuple[Shape, str]) -> Shape:
    """An object with these fields and no other; a name may end in ``_`` where Python has the word."""
    fields = {name.rstrip("_"): described(*field) for name, field in fields_.items()}
    return {
        "type": "object",
        "description": description,
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }


def listed(items: Shape, count: int | None = None) -> Shape:
    """A list of one shape, of so many entries if that is given."""
    size = {} if count is None else {"minItems": count, "maxItems": count}
    return {"type": "array", "items": items, **size}


def named(values: Shape) -> Shape:
    """An object whose names are not known beforehand."""
    return {"type": "object", "additionalProperties": values}


def either(*shapes: Shape) -> Shape:
    """One of several shapes."""
    return {"anyOf": list(shapes)}


def absent(shape: Shape) -> Shape:
    """A shape, or null."""
    return either(shape, {"type": "null"})


MATRIX = listed(listed(NUMBER))


ORDER = record(
    "an order of the tokens, or the mean of random ones",
    name=(TEXT, "the way of weighing or following attention, or the head, that gives it"),
    first=(listed(TEXT), "the tokens that stand first, with their numbers; none of random orders"),
    deletion=(
        listed(NUMBER),
        "the probability of the prediction after each step, the first tokens gone first",
    ),
    insertion=(listed(NUMBER), "the same, while the first tokens alone come back"),
    deletion_area=(NUMBER, "the mean of that curve: the lower, the better the order"),
    insertion_area=(NUMBER, "the mean of that curve: the higher, the better the order"),
    deletion_error=(NUMBER, "its standard error over random orders; 0 of one order"),
    insertion_error=(NUMBER, "its standard error over random orders; 0 of one order"),
)
FAITHFUL = record(
    "which order of the tokens a prediction hangs on (--faithful)",
    taken=(listed(COUNT), "how many tokens are taken away at each step"),
    ranked=(listed(ORDER), "every order, that with the lowest deletion first"),
    random=(ORDER, "the mean of random orders"),
    alone=(ORDER, "by how far the prediction falls without each token alone"),
    title=(TEXT, "what was asked"),
    subtitle=(TEXT, "the prediction"),
    notes=(NOTES, "what to know"),
)


MOVED = record("a word", text=(TEXT, "the word"), moved=(NUMBER, "how far its score is moved"))
WRITES = record(
    "what each part writes to the score of a token (--writes), in logits",
    title=(TEXT, "the model"),
    prediction=(TEXT, "whose score it is, in words"),
    notes=(NOTES, "what to know of the numbers"),
    score=(NUMBER, "the score, which all parts sum to"),
    heads=(
        listed(
            record(
                "a head",
                kind=(KIND, "its kind of attention"),
                layer=(COUNT, "its layer"),
                head=(COUNT, "its number in the layer"),
                effect=(NUMBER, "what it writes"),
            )
        ),
        "every head",
    ),
    feed_forward=(
        listed(record("a layer", layer=(COUNT, "its number"), effect=(NUMBER, "what it writes"))),
        "what each layer adds beside its attention",
    ),
    mixers=(
        listed(
            record(
                "a module",
                layer=(COUNT, "its layer"),
                module=(TEXT, "its path in the layer, or attention, whose heads are not told apart"),
                effect=(NUMBER, "what it writes"),
            )
        ),
        "other modules that mix tokens",
    ),
    embeddings=(NUMBER, "what the embeddings write"),
    biases=(NUMBER, "what biases write"),
    rest=(NUMBER, "what rounding leaves of the score"),
    words=(
        listed(
            record(
                "a head: the one that is named, or those that write most",
                kind=(KIND, "its kind of attention"),
                layer=(COUNT, "its layer"),
                head=(COUNT, "its number in the layer"),
                raised=(listed(MOVED), "the words whose scores its output raises most"),
                lowered=(listed(MOVED), "those that it lowers most"),
            )
        ),
        "the words that heads move",
    ),
)


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


ANSWERS: dict[str, tuple[Any, ...]] = {
    "show": (OVERVIEW, ONE_HEAD, ONE_TOKEN, ABLATION, WRITES),
    "stats": (MEASURED, CURVES, FAITHFUL),
    "compare": (
        Comparison,
        DepthComparison,
        HeadComparison,
        TextComparison,
        ModelComparison,
        Feeds,
    ),
    "find": (FindResult, GoldResult),
    "spans": (SpanMaps, WrittenAttention, FindResult),
    "align": (SpokenText, MonotoneHeads),
    "flow": (Flow, FAITHFUL),
    "info": (SURVEY, AUDIT),
    "check": (CHECK,),
    "export": (EXPORT,),
}
"""The records that each command may print with ``--json``; a shape stands where there is no record yet."""

UNWEIGHED = ("info", "flow", "align")
"""The commands that never weigh what they show."""

WEIGHED = {
    "weigh": shaped(str, Meaning("what the weights are weighed by (--weigh); absent where they are not")),
    "target": shaped(
        str, Meaning("the prediction that a gradient is of (--target); absent where none was named")
    ),
}


def schema_of(command: str) -> Shape:
    """The schema of what a command prints with ``--json``."""
    name = name_schema(command)
    first = {"schema": {"const": name, "description": "the name of this schema, and its version behind it"}}
    more = {} if command in UNWEIGHED else WEIGHED
    shapes = [
        shape | {"properties": first | shape["properties"] | more, "required": ["schema", *shape["required"]]}
        for shape in map(schema, ANSWERS[command])
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        "title": f"attnscope {command} --json",
        **(shapes[0] if len(shapes) == 1 else {"anyOf": shapes}),
    }
