"""A small predictable language to learn: sentences from a few words."""

import os
import random
import signal

ANIMALS = {"cat": "purred", "dog": "barked", "cow": "mooed", "duck": "quacked"}
PLACES = ("house", "river", "garden", "road")


def sentences(count, seed):
    """Each says an animal, a place, and the sound that only this animal makes."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        animal = chance.choice(list(ANIMALS))
        lines.append(
            f"The {animal} in the {chance.choice(PLACES)} {ANIMALS[animal]} and the {animal} ran away."
        )
    return lines


def write_corpus(folder, files=3, count=120):
    """Some files of such sentences, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"book{number}.txt" for number in range(files)]
    for number, path in enumerate(paths):
        path.write_text("\n\n".join(sentences(count, number)) + "\n", encoding="utf-8")
    return paths


def press_ctrl_c(step):
    """Press it once, after a step."""
    return lambda progress: os.kill(os.getpid(), signal.SIGINT) if progress.step == step else None
