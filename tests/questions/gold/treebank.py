"""A small hand-made treebank, and the same as plain data."""

# each word with its head (from 0, -1 the root) and its relation; behind one with a + there is no space
SENTENCES = [
    "The 1 det | cat 4 nsubj | did+ 4 aux | n't 4 advmod | sleep+ -1 root | .+ 4 punct",
    "It 1 nsubj | saw -1 root | small 4 amod | red 4 amod | tokenizers+ 1 obj | , 6 punct | too+ 1 advmod",
    "Cats 1 nsubj | sleep+ -1 root",
    "Heads 1 nsubj | look -1 root | at 4 case | attentive 4 amod | words+ 1 obl",
    "The 1 det | dog 3 nsubj:pass | was 3 aux:pass | seen -1 root | by 5 case | Zoë 3 obl | 🐈+ 3 dep",
]


def rows(number: int) -> list[tuple[str, str, int, str]]:
    """The words of a sentence: form, what is behind it, head, relation."""
    words = (word.split() for word in SENTENCES[number].split(" | "))
    return [
        (form.removesuffix("+"), "" if form.endswith("+") else " ", int(head), relation)
        for form, head, relation in words
    ]


def conllu() -> str:
    """The treebank as a file has it, with a token of two words, a word that is left out, and comments."""
    blocks = []
    for number in range(len(SENTENCES)):
        lines = [f"# sent_id = {number}", f"# text = {plain(number)[0]}"]
        for place, (form, behind, head, relation) in enumerate(rows(number), 1):
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
    text, spans, links = "", [], []
    for word, (form, behind, head, relation) in enumerate(rows(number)):
        spans.append((len(text), len(text) + len(form)))
        text += form + behind
        links += [(word, head, relation)] if head >= 0 else []
    return text, spans, links
