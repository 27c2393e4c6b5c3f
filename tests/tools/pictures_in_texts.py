"""A tiny random model of every type that reads images in a text, with its real processor.

``python -m tests.tools.pictures_in_texts [TYPES]`` builds each type of transformers' image-text-to-text
list (``tests/models/vision_language.py``, ``vision_recipes.py``) and checks: whether the boxes of an
image's tokens tile it, at three proportions; whether painting a box changes that token most (at most ten
boxes); how far the weights are from those of the eager model; whether two images, or the frames of a video,
have separate tokens. ``--table tests/tools/pictures_in_texts.md`` writes the table.
"""

import copy
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from attnscope.attention import Head
from attnscope.capture.record import pattern
from attnscope.errors import AttnscopeError, first_line
from attnscope.models import Model, ModelInput, load
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from tests.models.images import can_import_torchvision, save_noise
from tests.models.vision_language import ALL, vision_language
from tests.models.vision_recipes import LEFT, make_folder
from tests.tools.survey import Row, grid, survey

TEXT = "what is on the mat ?"
SIZES = ((90, 120), (300, 170), (64, 320))
SHOWN = (160, 200)  # of the picture that is painted
COLUMNS = ("type", "verdict", "boxes tile", "identity", "difference from eager", "two images", "video")


def tiling(model: Model, file: Path, sizes: Sequence[tuple[int, int]] = SIZES) -> str:
    """At how many proportions the boxes cover a rectangle without gap or overlap."""
    good = 0
    for size in sizes:
        prepared = model.prepare_image(save_noise(file, *size), TEXT)
        named: dict[str, list[tuple[float, ...]]] = {}
        boxes = boxes_of(prepared)
        axes = [axis for pair in prepared.axes.values() for axis in pair if not isinstance(axis, range)]
        for token in {token for axis in axes for token in axis}:
            if token.id in boxes:
                name = token.text.split()[0] if " " in token.text else "patch"
                named.setdefault(name, []).append(boxes[token.id])
        if not named:
            return "numbered, with a note" if prepared.notes else "nothing is said"
        good += all(is_tiled(np.array(sorted(boxes))) for boxes in named.values())
        if prepared.pictures[0].boxes:
            left, top, right, bottom = np.array(list(prepared.pictures[0].boxes.values())).T
            assert min(left.min(), top.min()) >= 0
            assert right.max() <= size[1]
            assert bottom.max() <= size[0]
    return f"{good} of {len(sizes)}"


def boxes_of(prepared: ModelInput) -> Mapping[int, tuple[float, ...]]:
    """The boxes of a picture's tokens; of a picture read whole, beside the text, its patches."""
    picture = prepared.pictures[0]
    if picture.boxes or picture.grid is None:
        return picture.boxes
    rows, columns = picture.grid
    high, wide = SHOWN[0] / rows, SHOWN[1] / columns
    patches = [token.id for token in picture.tokens if not token.special]
    corners = [(column * wide, row * high) for row in range(rows) for column in range(columns)]
    boxes = [(left, top, left + wide, top + high) for left, top in corners]
    return dict(zip(patches, boxes, strict=True))


def is_tiled(boxes: np.ndarray[Any, Any]) -> bool:
    """Whether boxes have the area of what they span, and each corner lies in one of them."""
    left, top, right, bottom = boxes.T
    span = (right.max() - left.min()) * (bottom.max() - top.min())
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    inside = [((x > left) & (x < right) & (y > top) & (y < bottom)).sum() for x, y in middle]
    return bool(abs(((right - left) * (bottom - top)).sum() - span) < 1e-6 * span and max(inside) == 1)


def states_of(model: Model, prepared: ModelInput) -> torch.Tensor:
    """What the language model is given, by the model's own account.  [token, feature]"""
    with torch.inference_mode():
        output: Any = model.module(**prepared.inputs, output_hidden_states=True)
    states: torch.Tensor = output.get("hidden_states", output.get("encoder_hidden_states"))[0][0]
    return states.flatten(1)  # of several streams


def identity(model: Model, file: Path, most: int = 10) -> str:
    """Of how many boxes, ``most`` or less, the token moves most when the box is painted, and nothing else."""
    base = np.random.default_rng(1).integers(112, 144, (*SHOWN, 3), dtype=np.uint8)  # flat has no variance
    Image.fromarray(base).save(file)
    before = model.prepare_image(file, TEXT)
    boxes = boxes_of(before)
    if not boxes:
        return "none"
    states, right, count = states_of(model, before), 0, 0
    across = "cross" in before.axes and "encoder" not in before.axes
    if len(states) != len(before.tokens) or across:
        return "by cross-attention"
    placed = [position for position, token in enumerate(before.tokens) if token.id in boxes]
    for position in placed[:: -(-len(placed) // most)]:
        token = before.tokens[position]
        left, top, stop, bottom = (round(edge) for edge in boxes[token.id])
        painted = base.copy()
        painted[top + 1 : bottom - 1, left + 1 : stop - 1] = (250, 10, 90)
        Image.fromarray(painted).save(file)
        moved = (states_of(model, model.prepare_image(file, TEXT)) - states).norm(dim=-1)
        named = [i for i, other in enumerate(before.tokens) if other.text[:5] == token.text[:5]]
        right += max(named if " " in token.text else placed, key=lambda i: float(moved[i])) == position
        count += 1
    return f"{right} of {count}" if count else "none"


def eager(model: Model, file: Path) -> str:
    """How far the weights of one head are from those of the model's own eager attention."""
    prepared = model.prepare_image(save_noise(file, 90, 120), TEXT)
    plain: Any = copy.deepcopy(model.module)
    plain.set_attn_implementation("eager")
    with torch.inference_mode():
        output = plain(**prepared.inputs, output_attentions=True)
    output = output.get("language_model_outputs", output)  # of models with queries between
    first = output.get("encoder_attentions", output.get("attentions"))[0]
    weights = first.flatten(0, -3)[1].numpy()  # some join images and heads
    count = len(prepared.tokens)
    sites = [one.site for one in model.run(prepared, []).sites if one.queries == one.keys == count]
    sites = [site for site in sites if site.kind in prepared.axes]  # what queries read stands before the text
    site = next(site for site in sites if pattern(site.name) == pattern(sites[-1].name))
    seen = one_head(model, prepared, Selection(Head(site.layer, 1), kind=site.kind))
    assert [place.text for place in seen.heatmap.weights.keys] == [token.text for token in prepared.tokens]
    return f"{np.abs(seen.heatmap.values - weights).max():.1e}"


def pictures(model: Model, paths: Any, number: int, *, video: bool = False) -> str:
    """Whether each of some pictures has tokens, that are no other's unless frames are merged."""
    prepared = model.prepare_image(paths, TEXT, video=video)
    counts = [len(picture.boxes) for picture in prepared.pictures]
    if len(counts) != number or not all(counts):
        return "numbered" if not any(counts) else f"parts: {counts}"
    alone = sum(counts) == len({id_ for picture in prepared.pictures for id_ in picture.boxes})
    return "yes" if alone else "yes, frames merged"


def check(kind: str) -> list[str]:
    if kind in LEFT:
        return [kind, "not made", LEFT[kind], *[""] * 4]
    name = kind.replace("-", "_")
    with tempfile.TemporaryDirectory() as place:
        where = Path(place) / "model"
        folder = vision_language(where, name) if name in ALL else make_folder(kind, where)
        model, file = load(folder), Path(place) / "a.png"
        frames = Path(place) / "video"
        frames.mkdir()
        for number in range(4):
            save_noise(frames / f"{number}.png", 84, 112, number)
        two = [save_noise(Path(place) / "b.png", 90, 120), save_noise(Path(place) / "c.png", 120, 70, 1)]
        found = [run_check(partial(ask, model, file)) for ask in (tiling, identity, eager)]
        found.append(run_check(lambda: pictures(model, two, 2)))
        found.append(run_check(lambda: pictures(model, frames, 4, video=True)))
    return [kind, verdict_of(*found[:3]), *found]


def verdict_of(tiles: str, identities: str, apart: str) -> str:
    """What the checks say together."""
    if tiles == apart and not re.match("refused: the (processor|model) ", tiles):  # the same, of attnscope
        return "refused with the reason"
    if not re.fullmatch(r"[\d.]+e[+-]\d+", apart) or float(apart) > 1e-5:
        return "**open**"
    right, _, count = identities.partition(" of ")
    if tiles == "3 of 3" and (right == count or identities == "by cross-attention"):
        return "exact"
    return "numbered" if tiles == "numbered, with a note" else "**open**"


def run_check(work: Callable[[], str]) -> str:
    """What a check finds, or the sentence that refuses it."""
    try:
        return work()
    except AttnscopeError as error:
        why = re.sub(r"/\S+/", "", first_line(error))  # where it was made is of no interest
        return "no" if "does not read videos" in why else f"refused: {why[:70]}"
    except Exception as error:  # a row of the table, not the end of it
        return f"fails: {type(error).__name__}: {first_line(error)[:60]}"


def write(rows: list[Row]) -> str:
    listed = sorted(row.get("row") or [row["name"], "**open**", row["note"], *[""] * 4] for row in rows)
    verdicts = Counter(row[1] for row in listed)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    made = "Generated by `python -m tests.tools.pictures_in_texts`; its docstring says what is checked."
    lines = "\n".join(grid([COLUMNS, *listed]))
    return f"# Pictures in texts\n\n{made}\nOf {len(rows)} types: {counted}.\n\n{lines}\n"


if __name__ == "__main__":
    can_import_torchvision()
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as types

    survey("pictures_in_texts", lambda: types, lambda kind: {"row": check(kind)}, write, seconds=600)
