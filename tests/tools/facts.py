"""Train a small decoder to answer from a text of ten paragraphs, and ask attnscope where it read each answer.

``python -m tests.tools.facts FOLDER`` takes some ten minutes on one core. The bundled causal encoder copies
from some sixty tokens back; here its training goes on, on texts with a fact in each of ten paragraphs ("The
code of Alice is silver."), until it answers "What is the code of Alice? It is" from four hundred tokens back.
``find --gold`` then says, on fifty texts, which head looks from the word before the answer at the fact; and
``spans --by paragraph``, of a hundred others, which paragraph that head looks at most from "It is".
"""

import argparse
import io
import json
import random
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from attnscope.cli import app
from attnscope.network import load_encoder, save_encoder
from attnscope.network.folder import bundled
from attnscope.training.train import plain_attention, schedule

PARAGRAPHS = 10
KNOWN, DOCUMENTS = 50, 100
FIRST = 2_000_000
"""The seed of the first text that is asked about; those of the training come from one seed that is lower."""


def words(text: str) -> list[str]:
    """A list of words as it is easily read."""
    return text.split()


NAMES = words(
    """Albert Alice Andrew Anna Anne Arthur Ben Catherine Denis Diana Dorothea Edmond Elizabeth Frank Fred
    Frederick Henry Herbert Ivan Jack James Jane Jim Joe John Laurie Louis Lucy Marilla Marius Mary
    Matthew Natasha Nicholas Peter Pierre Robert Robin Rosamond Rose Sonia Tom Valentine"""
)
THINGS = words(
    """army bank bear bell bird blood board boat book box bread bridge candle carriage castle chair chest
    child church city clock cloth cloud coat coffin corner court crown dinner doctor door dream
    dress earth farm father fever field finger fire fish food forest friend garden ghost glass gold
    grass hair hall hand heart hill horse house ice iron island judge king kitchen knife lady lamp
    letter light lips lord master mill money moon morning mother mouth music name neck night north
    ocean office paper pipe pistol pocket pond port priest prince prison queen rain ring river road
    rock roof room school sea ship shop silver sister skin smoke snow soldier song soul south spring
    stone storm street summer sword table thunder time town train tree village voice wall water
    wheel wind window wine winter wood world yard year"""
)
"""Words of one token each, which are things to be told of, and codes."""
KINDS = words(
    """big black
    bright broken clean cold dark deep empty good great green grey heavy little long lost low new
    old pale plain quiet red rich sharp small soft strange strong sweet tall thick warm white wide
    wild young"""
)
DEEDS = words(
    "found lost saw sold held took forgot bought wanted watched passed opened left followed loved kept"
)
PLACES = words("near behind beyond under above before beside against inside outside")


def sentence(chosen: random.Random) -> str:
    """A sentence of common words, about nothing that is asked."""
    (one, two), (kind, other) = chosen.sample(THINGS, 2), chosen.sample(KINDS, 2)
    deed, place = chosen.choice(DEEDS), chosen.choice(PLACES)
    return chosen.choice(
        (
            f"The {kind} {one} {deed} the {two}.",
            f"A {one} stood {place} the {other} {two}.",
            f"They {deed} a {kind} {one} {place} the {two}.",
            f"There was a {kind} {one} and a {other} {two}.",
            f"The {one} and the {two} were {kind}.",
            f"It was {kind} {place} the {two}.",
        )
    )


def document(chosen: random.Random, paragraphs: int = PARAGRAPHS) -> tuple[list[str], list[tuple[str, str]]]:
    """Paragraphs of three or four sentences, a fact among those of each; and the facts: whose, and what."""
    facts = list(zip(chosen.sample(NAMES, paragraphs), chosen.sample(THINGS, paragraphs), strict=True))
    text = []
    for name, code in facts:
        sentences = [sentence(chosen) for _ in range(chosen.randint(2, 3))]
        sentences.insert(chosen.randrange(len(sentences) + 1), f"The code of {name} is {code}.")
        text.append(" ".join(sentences))
    return text, facts


def question(name: str) -> str:
    """What is asked."""
    return f"What is the code of {name}?"


def asked(seed: int) -> tuple[str, int, str]:
    """A text with a question and the words before its answer, the paragraph that has that, and the answer."""
    chosen = random.Random(seed)
    text, facts = document(chosen)
    place = chosen.randrange(PARAGRAPHS)
    name, code = facts[place]
    return "\n\n".join([*text, question(name), "It is"]), place, code


def rows(
    encode: Callable[[str], Any], chosen: random.Random, paragraphs: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts with all their questions and answers: tokens, and at the place before an answer the answer."""
    ids, targets = [], []
    for _ in range(count):
        text, facts = document(chosen, paragraphs)
        line = encode(" ".join(text)).ids[:-1]  # without [SEP]
        answers = [-100] * len(line)
        for name, code in chosen.sample(facts, len(facts)):
            more = encode(f"{question(name)} It is {code}.").ids[1:-1]
            line += more
            answers += [-100] * (len(more) - 3) + [more[-2], -100, -100]
        ids.append(torch.tensor(line))
        targets.append(torch.tensor(answers))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(ids, batch_first=True), pad(targets, batch_first=True, padding_value=-100)


def train(folder: Path, steps: int, seed: int, rate: float = 2e-3) -> None:
    """Go on from the bundled weights, on texts that grow longer in the first half, and save."""
    encoder, tokenizer = load_encoder(bundled("own-causal"))
    chosen = random.Random(seed)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    encoder.train()
    with plain_attention(encoder, torch.device("cpu")):
        for step in range(steps):
            paragraphs = min(PARAGRAPHS, 2 + 16 * step // steps)
            ids, targets = rows(tokenizer.encode, chosen, paragraphs, 120 // paragraphs)
            for group in optimizer.param_groups:
                group["lr"] = rate * schedule(step / steps, 0.04)
            answers = targets[targets >= 0]
            guess = encoder.logits(encoder(ids)[targets >= 0])  # [answer, vocabulary]
            loss = F.cross_entropy(guess, answers)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizer.step()
            if step % 10 == 0:
                right = float((guess.argmax(-1) == answers).float().mean())
                size = f"{paragraphs} paragraphs, {ids.shape[1]} tokens"
                print(f"step {step:,}, {size}: loss {loss.item():.3f}, {right:.0%} right", flush=True)
    save_encoder(folder, encoder.eval(), tokenizer)


def command(*words: str) -> str:
    """What ``attnscope`` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        app(list(words), standalone_mode=False)
    return printed.getvalue()


def answers_right(folder: Path) -> int:
    """How many of the texts the model answers."""
    encoder, tokenizer = load_encoder(folder)
    right = 0
    for number in range(DOCUMENTS):
        text, _, code = asked(FIRST + number)
        with torch.inference_mode():
            guess = encoder.logits(encoder(torch.tensor([tokenizer.encode(text).ids[:-1]]))[0, -1])
        right += int(guess.argmax()) == tokenizer.token_to_id(code)
    return right


def find_head(folder: Path) -> str:
    """The head that looks from the word before the answer at the fact, on texts of their own."""
    lines = []
    for number in range(KNOWN):
        text, _, code = asked(FIRST - 1 - number)
        name = re.search(r"of (\w+)\?\s+It is$", text)
        assert name is not None
        fact = re.search(f"code of {name[1]} is {code}", text)
        assert fact is not None
        pair = [[len(text) - 2, len(text)], [fact.end() - len(code), fact.end()], "answer"]
        lines.append(json.dumps({"text": text, "pairs": [pair]}))
    file = folder / "known.jsonl"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    print(command("find", "--gold", str(file), "-m", str(folder), "--top", "3"))
    best = json.loads(command("find", "--gold", str(file), "-m", str(folder), "--json"))["labels"][0]
    return "L{layer}H{head}".format(**best["heads"][0])


def paragraphs_right(folder: Path, head: str) -> int:
    """Of how many texts the paragraph with the answer is the one that the head looks at most."""
    right = 0
    file = folder / "text.txt"
    for number in range(DOCUMENTS):
        text, place, _ = asked(FIRST + number)
        file.write_text(text, "utf-8")
        look = ["spans", "-f", str(file), "-m", str(folder), "--by", "paragraph"]
        look += ["--head", head, "--pair", f"{PARAGRAPHS + 2} -> *"]
        if number == 0:
            print(text, command(*look), sep="\n\n")
        ranked = [each["question"] for each in json.loads(command(*look, "--json"))["questions"]]
        documents = [
            each for each in ranked if re.search(r"-> (\d|10) ", each)
        ]  # neither [CLS] nor the question
        right += f"-> {place + 1} " in documents[0]
    return right


def main() -> None:
    """Train, and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200, help="0: ask a folder that is there")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.steps:
        train(given.folder, given.steps, given.seed)
    print(f"{answers_right(given.folder)} of {DOCUMENTS} new texts are answered right")
    head = find_head(given.folder)
    right = paragraphs_right(given.folder, head)
    print(f"{head}: the paragraph that holds the answer is looked at most in {right} of {DOCUMENTS} texts")


if __name__ == "__main__":
    main()
