"""A small treebank, made by hand, and the same as plain data."""

SENTENCES = [
    # words with what stands behind each, then the head of each (from 0, -1 the root) and its relation
    (
        [("The", " "), ("cat", " "), ("did", ""), ("n't", " "), ("sleep", ""), (".", "")],
        [1, 4, 4, 4, -1, 4],
        ["det", "nsubj", "aux", "advmod", "root", "punct"],
    ),
    (
        [
            ("It", " "),
            ("saw", " "),
            ("small", " "),
            ("red", " "),
            ("tokenizers", ""),
            (",", " "),
            ("too", ""),
        ],
        [1, -1, 4, 4, 1, 6, 1],
        ["nsubj", "root", "amod", "amod", "obj", "punct", "advmod"],
    ),
    ([("Cats", " "), ("sleep", "")], [1, -1], ["nsubj", "root"]),
    (
        [("Heads", " "), ("look", " "), ("at", " "), ("attentive", " "), ("words", "")],
        [1, -1, 4, 4, 1],
        ["nsubj", "root", "case", "amod", "obl"],
    ),
    (
        [("The", " "), ("dog", " "), ("was", " "), ("seen", " "), ("by", " "), ("Zoë", " "), ("🐈", "")],
        [1, 3, 3, -1, 5, 3, 3],
        ["det", "nsubj:pass", "aux:pass", "root", "case", "obl", "dep"],
    ),
]


def conllu() -> str:
    """The treebank as a file has it, with a token of two words, a word that is left out, and comments."""
    blocks = []
    for number, (words, heads, relations) in enumerate(SENTENCES):
        lines = [f"# sent_id = {number}", f"# text = {plain(number)[0]}"]
        for place, ((form, behind), head, relation) in enumerate(
            zip(words, heads, relations, strict=True), 1
        ):
            if form == "did":
                lines.append(f"{place}-{place + 1}\tdidn't" + "\t_" * 8)
            misc = "_" if behind or form in ("did", "n't") else "SpaceAfter=No"
            lines.append(f"{place}\t{form}\t_\tX\t_\t_\t{head + 1}\t{relation}\t_\t{misc}")
        if number == 2:
            lines.append("2.1\tgone\t_\tX" + "\t_" * 6)
        blocks.append("\n".join(lines) + "\n\n")
    return "".join(blocks)


def plain(number):
    """The text of a sentence, the characters of its words, and its links: dependent, head, relation."""
    text, spans = "", []
    words, heads, relations = SENTENCES[number]
    for form, behind in words:
        spans.append((len(text), len(text) + len(form)))
        text += form + behind
    links = [(word, head, relations[word]) for word, head in enumerate(heads) if head >= 0]
    return text, spans, links
