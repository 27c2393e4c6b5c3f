"""A small vision-language model that learns the names of shapes, and whether its words light the right ones.

``python -m tests.tools.shapes FOLDER`` trains it on drawn shapes in some minutes on a processor, saves it in
FOLDER, and asks ``attnscope show "where is the disc" --image PICTURE --token disc`` about pictures that it
never saw: the patch that the word looks at most should be the one with the shape. The head is the one that is
best on some other pictures.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image, ImageDraw
from torch import Tensor

from attnscope.cli import main
from tests.models.vision_language import SQUARE, make_tokenizer

SHAPES = ("square", "disc", "cross", "ring", "bar", "triangle", "frame", "dot")
SIDE, CELL = 4, 14
CELLS = [f"cell{number}" for number in range(SIDE * SIDE)]
SHOWN = 4
STEPS, BATCH = 1500, 64
CHOSEN_ON, ASKED = 20, 100


def draw(shape: str, pen: ImageDraw.ImageDraw, left: int, top: int, colour: tuple[int, ...]) -> None:
    """One shape in a cell of 14 × 14 pixels."""
    box = (left + 2, top + 2, left + 11, top + 11)
    middle = (left + 6, top + 6)
    if shape == "square":
        pen.rectangle(box, fill=colour)
    elif shape == "disc":
        pen.ellipse(box, fill=colour)
    elif shape == "cross":
        pen.line((box[0], middle[1], box[2], middle[1]), fill=colour, width=3)
        pen.line((middle[0], box[1], middle[0], box[3]), fill=colour, width=3)
    elif shape == "ring":
        pen.ellipse(box, outline=colour, width=2)
    elif shape == "bar":
        pen.rectangle((left + 5, top + 1, left + 8, top + 12), fill=colour)
    elif shape == "triangle":
        pen.polygon([(left + 6, top + 2), (left + 11, top + 11), (left + 2, top + 11)], fill=colour)
    elif shape == "frame":
        pen.rectangle(box, outline=colour, width=2)
    else:
        pen.ellipse((left + 5, top + 5, left + 8, top + 8), fill=colour)


def picture(random: np.random.Generator) -> tuple[Image.Image, dict[str, int]]:
    """A picture of some shapes in colours of their own, and the cell of each."""
    image = Image.new("RGB", (SIDE * CELL, SIDE * CELL), (20, 20, 20))
    pen = ImageDraw.Draw(image)
    shapes = random.choice(len(SHAPES), SHOWN, replace=False)
    cells = random.choice(SIDE * SIDE, SHOWN, replace=False)
    for shape, cell in zip(shapes, cells, strict=True):
        row, column = divmod(int(cell), SIDE)
        colour = tuple(int(value) for value in random.integers(120, 256, 3))
        draw(SHAPES[shape], pen, column * CELL, row * CELL, colour)
    return image, {SHAPES[shape]: int(cell) for shape, cell in zip(shapes, cells, strict=True)}


def build() -> tuple[Any, Any]:
    """A small LLaVA and its processor."""
    t, words = (
        transformers,
        make_tokenizer("<image>", words=["where", "is", "the", "nothing", *SHAPES, *CELLS]),
    )
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**size, image_size=SIDE * CELL, patch_size=CELL),
        text_config=t.LlamaConfig(**size, vocab_size=len(words), pad_token_id=1),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    images = t.CLIPImageProcessor(size={"shortest_edge": SIDE * CELL}, crop_size=SQUARE)
    processor = t.LlavaProcessor(
        images,
        words,
        patch_size=CELL,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    torch.manual_seed(0)
    return t.AutoModelForImageTextToText.from_config(config), processor


def batch(random: np.random.Generator, processor: Any) -> tuple[dict[str, Tensor], Tensor]:
    """New pictures with all their shapes named, and what is to be predicted at each token.  [picture, token]

    At a patch it is the name of the shape in it, behind a shape's name its cell; -100 is nothing.
    """
    images, texts, cells = [], [], []
    for _ in range(BATCH):
        image, placed = picture(random)
        shapes = random.permutation(list(placed))
        images.append(image)
        texts.append(
            "<image> " + " ".join(f"where is the {shape} {CELLS[placed[shape]]}" for shape in shapes)
        )
        cells.append({cell: shape for shape, cell in placed.items()})
    inputs = dict(processor(text=texts, images=images, return_tensors="pt"))
    id_of = processor.tokenizer.convert_tokens_to_ids
    ids, names = inputs["input_ids"], torch.tensor([id_of(shape) for shape in SHAPES])
    wanted = torch.full_like(ids, -100)
    wanted[:, : SIDE * SIDE] = torch.tensor(
        [[id_of(placed.get(cell, "nothing")) for cell in range(SIDE * SIDE)] for placed in cells]
    )
    behind = torch.isin(ids[:, :-1], names)
    wanted[:, :-1][behind] = ids[:, 1:][behind]
    return inputs, wanted


def train(model: Any, processor: Any) -> None:
    """Learn to name the shape in each patch, and the cell of a shape behind its name."""
    random = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    began = time.monotonic()
    for step in range(STEPS):
        inputs, wanted = batch(random, processor)
        scores = model(**inputs).logits  # [picture, token, vocabulary]
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            right = scores.argmax(-1) == wanted
            words = slice(SIDE * SIDE, None)
            patches, cells = (
                float(right[:, part].sum() / (wanted[:, part] != -100).sum())
                for part in (slice(SIDE * SIDE), words)
            )
            spent = time.monotonic() - began
            print(
                f"step {step + 1}: patches {patches:.2f}, cells {cells:.2f} right, {spent:.0f} s",
                file=sys.stderr,
            )


def find_lit(folder: Path, image: Image.Image, shape: str, head: str) -> int:
    """The patch that the shape's name looks at most in a head, by the command."""
    image.save(folder / "picture.png")
    words = ["show", f"where is the {shape}", "--image", str(folder / "picture.png"), "-m", str(folder)]
    answer = io.StringIO()
    sys.argv = ["attnscope", *words, "--token", shape, "--head", head, "--kind", "decoder", "--json"]
    with contextlib.redirect_stdout(answer), contextlib.suppress(SystemExit):
        main()
    return int(np.argmax(json.loads(answer.getvalue())["patches"][0]["looks_at"]))


def ask(folder: Path) -> tuple[str, int]:
    """The head that is best on some pictures, and for how many others its patch is the right one."""
    random = np.random.default_rng(1)

    def question() -> tuple[Image.Image, str, int]:
        image, cells = picture(random)
        shape = str(random.choice(list(cells)))
        return image, shape, cells[shape]

    known = [question() for _ in range(CHOSEN_ON)]
    right = {
        head: sum(find_lit(folder, image, shape, head) == cell for image, shape, cell in known)
        for head in ("L0H0", "L0H1", "L1H0", "L1H1")
    }
    best = max(right, key=lambda head: right[head])
    asked = [question() for _ in range(ASKED)]
    return best, sum(find_lit(folder, image, shape, best) == cell for image, shape, cell in asked)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if not (folder / "config.json").exists():
        model, processor = build()
        train(model, processor)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
    head, right = ask(folder)
    print(f"{head} lights the right shape in {right} of {ASKED} pictures that the model never saw")
