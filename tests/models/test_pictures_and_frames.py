"""Several pictures in a text, and the frames of a video: each token is named by what it stands for."""

import numpy as np
import pytest
from PIL import Image

from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.selection import Selection
from attnscope.questions.token import one_token
from tests.models.images import save_noise
from tests.models.vision_language import FAMILIES, NEED_TORCHVISION
from tests.tools.pictures_in_texts import TEXT, states_of

VIDEOS = ("llava_onevision", "qwen2_vl", "qwen2_5_vl", "smolvlm", "internvl", "llava_next_video")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[*([pytest.mark.torchvision] if name in NEED_TORCHVISION else []),
                                  *([] if name in ("llava", "llava_next") else [pytest.mark.slow])])
        for name in FAMILIES
        if name not in ("idefics2", "mllama")
    ]
)  # fmt: skip
def test_of_two_pictures_each_has_its_own_tokens(name, folder_of, tmp_path):
    model = load(folder_of(name))
    paths = [save_noise(tmp_path / "a.png", 90, 120), save_noise(tmp_path / "b.png", 120, 70, seed=1)]
    before = model.prepare_image(paths, TEXT)
    assert [picture.name for picture in before.pictures] == ["image 1", "image 2"]
    kept = states_of(model, before)
    for number in (0, 1):
        save_noise(paths[number], *(90, 120) if number == 0 else (120, 70), seed=7)
        after = model.prepare_image(paths, TEXT)
        save_noise(paths[number], *(90, 120) if number == 0 else (120, 70), seed=number)
        moved = (states_of(model, after) - kept).norm(dim=-1) > 1e-6
        own = {token.text for token, moves in zip(before.tokens, moved.tolist(), strict=True) if moves}
        placed = {token.text for token in before.tokens if token.id in before.pictures[number].boxes}
        assert own == placed
        assert {text.split(" · ")[0] for text in own} <= {f"image {number + 1}", f"thumbnail {number + 1}"}


def test_pictures_stand_where_the_text_has_their_signs(folder_of, tmp_path):
    model = load(folder_of("llava"))
    paths = [save_noise(tmp_path / "a.png", 56, 56), save_noise(tmp_path / "b.png", 56, 56, seed=1)]
    names = [token.text for token in model.prepare_image(paths, "left <image> right <image> what").tokens]
    assert names[:2] == ["left", "image 1 · 0,0"]
    assert names[17:19] == ["right", "image 2 · 0,0"]
    assert names[-1] == "what"
    with pytest.raises(InputError, match="the text has 1 × <image> and there are 2 images"):
        model.prepare_image(paths, "left <image> right")


def test_a_word_lights_both_pictures_on_one_scale(folder_of, tmp_path):
    model = load(folder_of("llava"))
    paths = [save_noise(tmp_path / "a.png", 56, 56), save_noise(tmp_path / "b.png", 56, 56, seed=1)]
    prepared = model.prepare_image(paths, TEXT)
    seen = one_token(model, prepared, Selection(Head("L1H0"), token="mat"))
    assert [shown.name for shown in seen.overlays] == ["image 1", "image 2"]
    second = one_token(model, prepared, Selection(Head("L1H0"), token="image 2 · 1,3"))
    assert [shown.patch for shown in second.overlays] == [None, (1, 3)]
    boxed = [bar for bar in seen.looks_at.bars if bar.label.startswith("image")]
    assert boxed
    assert all(bar.box is not None and bar.where.count("-") == 2 for bar in boxed)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.torchvision, *([] if name == "qwen2_vl" else [pytest.mark.slow])])
     for name in VIDEOS]
)  # fmt: skip
def test_the_tokens_of_a_video_are_named_by_their_frames(name, folder_of, tmp_path):
    model = load(folder_of(name))
    frames = [np.asarray(Image.open(save_noise(tmp_path / "f.png", 84, 112, seed=i))) for i in range(4)]

    def prepare(frames):
        images = [Image.fromarray(frame) for frame in frames]
        folder = tmp_path / "video"
        folder.mkdir(exist_ok=True)
        for number, image in enumerate(images):
            image.save(folder / f"{number:02}.png")
        return model.prepare_image(folder, TEXT, video=True)

    before = prepare(frames)
    assert [picture.name for picture in before.pictures] == [f"frame {n}" for n in range(1, 5)]
    kept = states_of(model, before)
    for number in range(4):
        changed = [255 - frame if place == number else frame for place, frame in enumerate(frames)]
        moved = (states_of(model, prepare(changed)) - kept).norm(dim=-1) > 1e-6
        own = {token.text for token, moves in zip(before.tokens, moved.tolist(), strict=True) if moves}
        assert own == {token.text for token in before.tokens if token.id in before.pictures[number].boxes}
        assert own
    merged = {"qwen2_vl", "qwen2_5_vl"}
    first = next(token.text for token in before.tokens if token.id in before.pictures[0].boxes)
    assert first == ("frames 1-2 · 0,0" if name in merged else "frame 1 · 0,0")
    assert ("each token of the video stands for the same part of 2 frames" in before.notes) == (
        name in merged
    )


@pytest.mark.torchvision
def test_of_a_long_gif_some_frames_are_taken_and_named(folder_of, tmp_path):
    frames = [Image.fromarray(np.full((56, 56, 3), 10 * i, np.uint8)) for i in range(20)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    prepared = load(folder_of("qwen2_vl")).prepare_image(tmp_path / "a.gif", TEXT, video=True)
    assert len(prepared.pictures) == 16
    assert prepared.notes[-1].startswith("of 20 frames, 16 are shown to the model: 1, 2, 4,")


def test_a_model_without_a_place_for_videos_says_so(folder_of, tmp_path):
    with pytest.raises(InputError, match="sees no videos"):
        load(folder_of("llava")).prepare_image(save_noise(tmp_path / "a.png", 56, 56), TEXT, video=True)
