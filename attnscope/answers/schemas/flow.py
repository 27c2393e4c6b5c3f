"""What ``flow`` prints with ``--json``, and what ``--faithful`` prints there and with ``stats``."""

from __future__ import annotations

from attnscope.answers.schemas.shape import COUNT, KIND, MATRIX, NOTES, NUMBER, TEXT, listed, record

FLOW = record(
    "what the tokens of each layer are made of, of the text's own",
    method=({"enum": ["rollout", "flow", "relevance", "alti"]}, "how attention was followed"),
    notes=(NOTES, "what to know"),
    layers=(
        listed(
            record(
                "the map of a layer",
                kind=(KIND, "its kind of attention"),
                layer=(COUNT, "its number"),
                queries=(listed(TEXT), "the tokens of the layer; of the largest flow of --token, that one"),
                positions=(listed(COUNT), "their numbers, or where each begins"),
                keys=(listed(TEXT), "the tokens of the text"),
                weights=(MATRIX, "[query, key]"),
            )
        ),
        "every layer, from the first",
    ),
)

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
