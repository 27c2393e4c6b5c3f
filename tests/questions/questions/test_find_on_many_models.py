"""Random questions about many types of models, against NumPy on their own eager weights."""

import random
import re
from itertools import groupby

import numpy as np
import pytest
import torch

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput, load
from attnscope.questions.find import find_heads, parse_questions
from attnscope.questions.parts import TextPart
from tests.capture.tiny import FAMILIES, inputs, own_attentions
from tests.models.folders import eager
from tests.models.images import picture, vision

IMAGES = ("deit", "beit", "dinov2", "dinov2-with-registers", "dinov3", "clip-vision", "siglip-vision")
QUESTIONS = 15
NEAR = 2e-6

TOKENS = ("[CLS]", "The", "un", "tired", "cat", ",", "the", "cat", "sat", ".", "A", "[SEP]")
WORDS = (None, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, None)
TARGET = ("<s>", "Die", "Katze", ",", "die", "Kat", "ze", "schlief", "</s>")
TARGET_WORDS = (None, 0, 1, 2, 3, 4, 4, 5, None)


class Tiny(Model):
    """A random model that reads what it is given."""

    def prepare(self, text, second=None, limit=None):
        raise AssertionError("nothing is tokenized here")


def axis(texts, words):
    return tuple(
        Token(text, number, special=word is None, word=word)
        for number, (text, word) in enumerate(zip(texts, words, strict=True))
    )


def made(name):
    """A random model of a family, its input, and the model's own eager attention by kind."""
    family = FAMILIES[name]
    given = {key: tensor[:1] for key, tensor in inputs(family.inputs, length=len(TOKENS)).items()}
    given.pop("attention_mask", None)
    source, target = axis(TOKENS, WORDS), axis(TARGET, TARGET_WORDS)
    axes = {"encoder": (source, source), "decoder": (source, source)}
    if family.inputs == "pair":
        axes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    if family.inputs == "audio":
        frames, target = range(10), axis(TARGET, TARGET_WORDS)
        axes = {"encoder": (frames, frames), "decoder": (target, target), "cross": (target, frames)}
    if family.inputs == "image":
        axes = {"encoder": (range(17), range(17))}
    with torch.inference_mode():
        own = own_attentions(family.build("eager")(**given, output_attentions=True))
    return Tiny(name, family.build(), None), ModelInput(given, axes, source), own


def made_of_images(name, folder):
    """A random model of images, a picture as it reads it, and the model's own eager attention."""
    model = load(vision(folder / name, name))
    prepared = model.prepare_image(picture(folder / "picture.png"))
    return model, prepared, {"self": list(eager(folder / name, **prepared.inputs).attentions)}


def groups_of(tokens):
    """The words of an axis: each as its name and its tokens."""
    if isinstance(tokens, range):
        return [(str(number), [number]) for number in tokens]
    words = [number if token.word is None else -1 - token.word for number, token in enumerate(tokens)]
    groups = [list(run) for _, run in groupby(range(len(tokens)), key=words.__getitem__)]
    return [("".join(tokens[number].text for number in group), group) for group in groups]


def random_part(chance, tokens, *, row):
    """A part of an axis as one writes it, and its groups of tokens; or how far the key is from the row."""
    named = groups_of(tokens)
    name, group = chance.choice(named)
    same = [each for other, each in named if other.casefold() == name.casefold()]
    exact = [each for other, each in named if other == name]
    plain = not isinstance(tokens, range)
    special = [[number] for number, token in enumerate(tokens) if plain and token.special]
    points = [[number] for number, token in enumerate(tokens) if plain and token.text in ",."]
    number = chance.randrange(len(tokens))
    choices = [("*", [each for _, each in named], None), (str(number), [[number]], None)]
    if plain:
        begun = [each for other, each in named if other.startswith(name[0])]
        choices.append((name, exact or same, None))
        choices.append((f"{name}#{exact.index(group) + 1}", [group], None))
        choices.append((f"/^{re.escape(name[0])}/", begun, None))
        choices += [("special", special, None)] if special else []
        choices += [("punctuation", points, None)] if points else []
    if not row:
        step = chance.choice([-3, -2, -1, 1, 2])
        choices.append((f"{step:+d}", [], step))
    return chance.choice(choices)


def brute(weights, rows, keys, step, words):
    """Share, baseline, and the least and greatest rank of one head, one row after the other; None: masked."""
    figures, counted = np.zeros(4), 0.0
    for group in rows:
        for row in group:
            opened = np.flatnonzero(weights[row] > 0)
            wanted = {row + step} if step is not None else {key for each in keys for key in each}
            meant = [key for key in opened if key in wanted]
            if not meant:
                continue
            if step is not None:
                parts = [[key] for key in range(weights.shape[1])]
            else:  # what is meant counts as a word, and so does what it leaves of another
                parts = [[key for key in word if key not in wanted] for word in words] + list(keys)
            sums = np.array([weights[row, part].sum() for part in parts if part])
            best = max(
                total for total, part in zip(sums, filter(None, parts), strict=True) if wanted & set(part)
            )
            least, most = 1 + (sums > best + NEAR).sum(), 1 + (sums > best - NEAR).sum()
            share, even = weights[row, meant].sum(), len(meant) / len(opened)
            figures += np.array([share, even, least, most]) / len(group)
            counted += 1 / len(group)
    return figures / counted if counted else None


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("name", [*FAMILIES, *IMAGES])
def test_random_questions_have_the_answers_of_brute_force(name, tmp_path):
    model, prepared, own = made_of_images(name, tmp_path) if name in IMAGES else made(name)
    chance, answered = random.Random(name), 0
    for _ in range(QUESTIONS):
        kind = chance.choice(list(prepared.axes)) if len(own) > 1 else None
        queries, keys = prepared.axes[kind or next(iter(prepared.axes))]
        left, rows, _ = random_part(chance, queries, row=True)
        right, columns, step = random_part(chance, keys, row=False)
        if step is None and chance.random() < 0.2:  # each key is asked about from so many tokens away
            step = chance.choice([-3, -1, 1, 2])
            moved = [[key - step for key in group if 0 <= key - step < len(queries)] for group in columns]
            left, rows, columns = f"{-step:+d}", [group for group in moved if group], []
        try:
            (answer,) = find_heads(model, prepared, parse_questions(f"{left} -> {right}")).answers
        except SelectionError:
            answer = None
        found = {looking.head: looking for looking in answer.heads} if answer else {}
        for own_kind, layers in own.items():
            if kind not in (None, own_kind):
                continue
            mine = {  # a pooling head is no self-attention, and no model reports it
                (head.layer, head.head): looking
                for head, looking in found.items()
                if own_kind == head.kind or (own_kind == "self" and head.kind != "cross")
            }
            for layer, stacked in enumerate(layers):
                for head, weights in enumerate(stacked[0].double().numpy()):
                    words = [group for _, group in groups_of(keys)]
                    expected = brute(weights, rows, columns, step, words)
                    looking = mine.get((layer, head))
                    assert (looking is None) == (expected is None), (left, right, layer, head)
                    if looking is None:
                        continue
                    answered += 1
                    assert looking.weight == pytest.approx(expected[0], abs=5 * NEAR), (left, right)
                    assert looking.baseline == pytest.approx(expected[1], abs=1e-6)
                    if right != "*":
                        assert expected[2] - 1e-6 <= looking.rank <= expected[3] + 1e-6, (left, right)
    assert answered > 50


def test_parts_are_looked_for_once_for_all_layers(monkeypatch):
    asked = []
    tokens = TextPart.tokens

    def counted(part, axis):
        asked.append(part.text)
        return tokens(part, axis)

    monkeypatch.setattr(TextPart, "tokens", counted)
    model = load("own")
    text = model.prepare("The cat sat on the mat.")
    (answer,) = find_heads(model, text, parse_questions("sat -> cat")).answers
    assert len({looking.head.layer for looking in answer.heads}) == 4
    assert asked == ["sat", "cat"]
