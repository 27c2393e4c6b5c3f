"""What ``show --writes`` prints with ``--json``."""

from attnscope.answers.schemas.shape import COUNT, KIND, NOTES, NUMBER, TEXT, listed, record

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
