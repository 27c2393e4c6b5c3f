"""What a model saw or heard, and where its tokens are in it."""

import wave as wav

import numpy as np
import pytest
from PIL import Image

from attnscope.attention import Token
from attnscope.axes import HEARD, PICTURED
from attnscope.models import load
from attnscope.models.inputs import ModelInput, Picture
from attnscope.questions.token import find_scene
from tests.models import images, speech
from tests.models.vision_language import vision_language


def test_patches_of_a_picture_are_equal_parts_row_by_row(tmp_path):
    model = load(images.vision(tmp_path / "vit", "vit"))
    scene = find_scene(model.prepare_image(images.picture(tmp_path / "a.png")))
    assert scene.pixels.shape == (64, 64, 3)
    assert list(scene.parts) == [PICTURED + number for number in range(16)]
    assert scene.parts[PICTURED + 6] == (0.5, 0.25, 0.75, 0.5, True)


def test_parts_of_a_picture_in_a_text_tile_what_the_model_saw(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    model = load(vision_language(tmp_path / "model", "llava_next"))
    scene = find_scene(model.prepare_image(tmp_path / "a.png", "what is on the mat ?"))
    fine = np.array([part[:4] for part in scene.parts.values() if part.fine])
    coarse = [part for part in scene.parts.values() if not part.fine]
    assert ((fine[:, 2] - fine[:, 0]) * (fine[:, 3] - fine[:, 1])).sum() == pytest.approx(1)
    assert len(coarse) == 16  # the thumbnail shows all of it once more
    assert fine.min() == 0
    assert fine.max() == 1


def test_boxes_lie_in_the_part_of_the_picture_that_is_shown():
    tokens = tuple(Token(f"image 1 · 0,{n}", PICTURED + n) for n in range(2))
    boxes = {PICTURED: (10.0, 20.0, 30.0, 40.0), PICTURED + 1: (30.0, 20.0, 50.0, 40.0)}
    picture = Picture(np.zeros((20, 40, 3), np.uint8), (1, 2), tokens, boxes)
    scene = find_scene(ModelInput({}, {}, tokens, pictures=(picture,)))
    assert [part[:4] for part in scene.parts.values()] == [(0, 0, 0.5, 1), (0.5, 0, 1, 1)]


def test_moments_of_a_sound_follow_each_other_and_padding_has_no_part(tmp_path):
    prepared = load(speech.whisper(tmp_path / "model")).prepare_audio(speech.sound(tmp_path / "a.wav"), "cat")
    scene, frames = find_scene(prepared), prepared.heard.frames
    assert scene.heard
    assert scene.pixels.shape == (16, frames, 3)
    assert list(scene.parts) == [HEARD + frame for frame in range(frames)]
    assert frames < len(prepared.axes["cross"][1])
    loud = prepared.heard.bands[:, :frames]  # [band, frame]
    drawn = scene.pixels[::-1, :, 0] / 255  # low tones at the bottom
    np.testing.assert_allclose(drawn, (loud - loud.min()) / np.ptp(loud), atol=0.003)


def test_a_model_of_the_wave_has_a_spectrogram_in_which_a_tone_is_where_it_sounds(tmp_path):
    rate, at = 16000, np.arange(16000) / 16000
    wave = np.where(at < 0.5, np.sin(2 * np.pi * 1000 * at), np.sin(2 * np.pi * 6000 * at))
    with wav.open(str(tmp_path / "tones.wav"), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((20000 * wave).astype("<i2").tobytes())
    prepared = load(speech.encoder(tmp_path / "model", "hubert")).prepare_audio(tmp_path / "tones.wav")
    assert find_scene(prepared).heard
    bands, frames = prepared.heard.bands, prepared.heard.frames  # [band, frame]
    assert bands.shape[1] >= frames
    loudest = bands[:, :frames].argmax(0) * (rate / 2) / len(bands)  # hertz where each band begins
    half = round(0.5 / prepared.heard.seconds)
    assert np.all(np.abs(loudest[1 : half - 1] - 1000) < 150)
    assert np.all(np.abs(loudest[half + 1 : frames - 1] - 6000) < 150)


def test_several_pictures_stand_beside_each_other_each_with_its_parts():
    def one(first: int, grey: int) -> Picture:
        tokens = tuple(Token("", PICTURED + first + n) for n in range(2))
        return Picture(np.full((20, 40, 3), grey, np.uint8), (1, 2), tokens, name=f"image {grey}")

    pictures = one(0, 50), one(2, 90), one(4, 130)
    scene = find_scene(ModelInput({}, {}, (), pictures=pictures))
    tall, wide = scene.pixels.shape[:2]
    for number, (id_, part) in enumerate(scene.parts.items()):
        assert id_ == PICTURED + number
        rows = slice(round(part.top * tall), round(part.bottom * tall))
        inside = scene.pixels[rows, round(part.left * wide) : round(part.right * wide)]
        assert (inside == (50, 90, 130)[number // 2]).all()
        assert inside.shape == (20, 20, 3)


def test_a_text_has_no_scene():
    assert find_scene(load("own").prepare("the cat")) is None
