"""What ``find --gold`` prints with ``--json``."""

from attnscope.answers.schemas.looks import NOTED, WHERE
from attnscope.answers.schemas.shape import COUNT, FLAG, NUMBER, TEXT, WHOLE, absent, listed, record

ANSWERED = record(
    "a head's answers to the questions of a label",
    **WHERE,
    rows=(COUNT, "questions that were asked"),
    texts=(COUNT, "texts with any of them"),
    accuracy=(NUMBER, "the share with the largest weight on an answer, special tokens and the word aside"),
    accuracy_error=(absent(NUMBER), "its standard error over texts"),
    weight=(NUMBER, "how much the answers get on average"),
    weight_error=(absent(NUMBER), "its standard error over texts"),
    baseline=(NUMBER, "how much the answers get of even attention"),
    offset=(WHOLE, "the best fixed distance, in words"),
    fixed=(NUMBER, "the accuracy of the word at that distance"),
    chosen=(NUMBER, "the accuracy on the texts on which heads are ranked"),
    aer=(absent(NUMBER), "the alignment error rate, of alignments"),
    aer_error=(absent(NUMBER), "its standard error over texts"),
)
GOLD = record(
    "heads by how many known answers they find (--gold)",
    notes=NOTED,
    held_out=(FLAG, "whether heads were ranked on other texts than those of the figures"),
    labels=(
        listed(
            record(
                "a label in one direction",
                label=(TEXT, "the label of the file"),
                direction=(TEXT, "which words look at which"),
                heads=(listed(ANSWERED), "every head, the one that finds most answers first"),
            )
        ),
        "every label and direction, the most frequent first",
    ),
)
