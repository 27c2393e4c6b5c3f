"""What ``align`` prints with ``--json``, as JSON Schema."""

from attnscope.answers.schemas.looks import NOTED
from attnscope.answers.schemas.shape import COUNT, NUMBER, TEXT, either, listed, record

BEGIN = (NUMBER, "when it begins, in seconds")
END = (NUMBER, "when it ends")
WORD = record("a word", text=(TEXT, "the word, with the punctuation at it"), begin=BEGIN, end=END)
TOKEN = record(
    "a token",
    text=(TEXT, "as a person reads it"),
    id=(COUNT, "its number in the vocabulary"),
    begin=BEGIN,
    end=END,
)
HEAD = record(
    "a head",
    head=(TEXT, "its address"),
    forward=(NUMBER, "the share of a token's attention on the best way that only goes forward"),
    baseline=(NUMBER, "the same of even attention"),
)

ALIGN = either(
    record(
        "when each word is said",
        notes=NOTED,
        heads=(listed(TEXT), "the cross-attention heads that it goes by"),
        way=(TEXT, "why those heads"),
        begin=(NUMBER, "the second of the file from which the sound is heard"),
        seconds=(NUMBER, "the second up to which it is heard"),
        words=(listed(WORD), "the words, in order"),
        tokens=(listed(TOKEN), "the tokens that they are made of"),
    ),
    record("heads that go forward (--rank)", ranked=(listed(HEAD), "all heads, the most first")),
)
