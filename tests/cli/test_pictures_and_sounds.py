"""Images and sounds, alone and in a text, from the command line."""

import io
import re
import sys

import numpy as np
import pytest
from rich.console import Console

from attnscope.attention import Head, Token
from attnscope.axes import SOUND_ID, places
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.questions.token import one_token
from attnscope.render.colour import blend, resize
from attnscope.render.image import drawing as drawn
from attnscope.render.image.sheet import labels
from attnscope.render.terminal import print_view
from tests.capture.observing import MapObserver
from tests.models.vision_recipes import vision_encoder_decoder
from tests.tools import sounds

ABOUT = "what is on the mat ?"


def test_patch_is_shown_as_shades_in_a_pipe(run, vit, picture):
    asked = ("show", "--image", picture, "-m", vit, "--token", "1,2", "--head", "L0H1")
    out, answer = run(*asked).out, run.json(*asked)
    assert "1,2 attends to" in out
    assert "1,2 is attended to by" in out
    assert "\x1b" not in out
    rows = [line for line in out.splitlines() if line.count("│") == 4]
    assert [row.count("××") for row in rows] == [0, 2, 0, 0]
    heaviest = np.unravel_index(np.argmax(answer["patches"][0]["looks_at"]), (4, 4))
    if heaviest != (1, 2):
        cell = rows[heaviest[0]].split("│")[1][2 * heaviest[1] :][:2]
        assert cell == "██"


def test_terminal_shows_highlighted_image_at_any_width(vit, picture):
    model, printed = load(vit), {}
    view = one_token(model, model.prepare_image(picture), Selection(Head("L0H1"), token="CLS"))
    for width in (40, 80, 160):
        how = {"force_terminal": True, "color_system": "truecolor", "legacy_windows": False}
        console = Console(file=io.StringIO(), width=width, **how)
        print_view(view, console)
        printed[width] = console.file.getvalue()
        plain = re.sub(r"\x1b\[[\d;]*m", "", printed[width])
        assert max(map(len, plain.splitlines())) <= width
    levels = view.overlays[0].looks_at / view.overlays[0].looks_at.max()
    pixels = blend(resize(view.overlays[0].pixels, 38, 38), resize(levels, 38, 38), "ember")
    for row, column in ((0, 0), (20, 11), (36, 37)):
        above, below = (";".join(map(str, pixels[at, column])) for at in (row, row + 1))
        assert f"\x1b[38;2;{above};48;2;{below}m" in printed[80]
    assert printed[80].count("▀") == 2 * 19 * 38


def test_image_alone_prompts_a_generative_model(run, picture, tmp_path):
    folder = vision_encoder_decoder(tmp_path / "model")
    asked = ("--image", picture, "-m", folder, "--generate", "4", "--kind", "cross", "--head", "L0H0")
    shown = run("show", *asked)
    assert "<s> 0" in shown.out
    assert "generated 4 tokens" in shown.out
    written = load(folder, generative=True)
    queries = written.generate(written.prepare_image(picture), 4).axes["cross"][0]
    assert run.json("show", *asked)["queries"] == [one.text for one in queries]


def test_overlay_brightness_follows_attention_weight():
    pixels = np.full((2, 2, 3), 200, np.uint8)
    shown = blend(pixels, np.array([[0.0, 1.0], [0.5, 0.0]]), "ember").astype(int)
    assert shown[0, 0].tolist() == [60, 60, 60]
    assert shown[0, 0].sum() < shown[1, 0].sum() < shown[0, 1].sum()
    black = blend(np.zeros((1, 2, 3), np.uint8), np.array([[0.0, 1.0]]), "ember").astype(int)
    assert black[0, 0].sum() == 0
    assert black[0, 1].sum() > 100


def test_resizing_averages_down_and_repeats_up():
    field = np.arange(16.0).reshape(4, 4)
    assert resize(field, 2, 2).tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert resize(field, 1, 1).item() == field.mean()
    assert np.array_equal(resize(field, 8, 4)[:, 0], np.repeat(field[:, 0], 2))
    assert np.array_equal(resize(field, 4, 4), field)
    assert resize(np.zeros((5, 7, 3)), 3, 9).shape == (3, 9, 3)


def test_two_images_are_drawn_and_listed_with_boxes(run, llava, drawing):
    asked = ["show", ABOUT, "--image", drawing, "--image", drawing, "-m", llava, "--token", "mat"]
    out, answer = run(*asked).out, run.json(*asked)
    assert all(f"image {number}: mat attends to" in out for number in (1, 2))
    assert [shown["picture"] for shown in answer["patches"]] == ["image 1", "image 2"]
    boxes = [bar["box"] for bar in answer["looks_at"] if bar["text"].startswith("image")]
    assert boxes
    assert all(0 <= left < right <= 120 and 0 <= top < bottom <= 90 for left, top, right, bottom in boxes)


def test_question_may_name_one_of_two_images(run, llava, drawing):
    asked = (ABOUT, "--image", drawing, "--image", drawing, "-m", llava)
    both, one = (run.json("find", question, *asked) for question in ("mat -> image", "mat -> image 2"))
    assert one["questions"][0]["heads"][0]["weight"] < both["questions"][0]["heads"][0]["weight"]


def test_compare_and_flow_default_to_the_text_decoder(run, llava, drawing):
    given = [ABOUT, "--image", drawing, "-m", llava]
    assert "decoder attention" in run("compare", *given).out
    ran = run("flow", *given, "--token", "mat")
    assert "decoder attention" in ran.out
    assert "mat draws on" not in ran.err
    assert "│" in ran.out  # the picture is lit


def test_missing_soundfile_error_says_what_to_install(run, hubert, tone, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    run("show", "--audio", tone, "-m", hubert).refuses("pip install 'attnscope[audio]'")


def test_speech_cross_attention_is_shown_first(run, whisper, tone, tmp_path):
    asked, kept = ("show", "The cat sat.", "--audio", tone, "-m", whisper), tmp_path / "sound.trace"
    run(*asked, "--save-trace", kept)
    for looked in (asked, ("show", "--from", kept)):
        out = run(*looked).out
        assert out.index("cross-attention") < out.index("encoder attention")


def test_spectrogram_is_drawn_above_the_picture(whisper, tone):
    model = load(whisper)
    prepared = model.prepare_audio(tone, "The cat sat.")
    view = one_head(model, prepared, "cross L0H1").heatmap
    features = prepared.inputs["input_features"][0].numpy()  # [band, step]
    pairs = (features[:, ::2] + features[:, 1::2]) / 2
    levels = (pairs - pairs.min()) / (pairs.max() - pairs.min())
    np.testing.assert_allclose(view.bands, levels, atol=1e-6)
    with drawn(view) as (figure, _):
        shapes = [one.images[0].get_array().shape for one in figure.axes if one.images]
        whole, strip = (figure.axes[shapes.index(shape)] for shape in (view.values.shape, levels.shape))
        assert strip.get_position().y0 >= whole.get_position().y1
        assert strip.get_position().x0 == pytest.approx(whole.get_position().x0)
        np.testing.assert_allclose(strip.images[0].get_array(), levels, atol=1e-6)
    assert one_head(model, prepared, "encoder L0H1").heatmap.bands is None


def test_long_sound_axis_has_whole_seconds():
    axis = places(tuple(Token(f"{20 + 0.02 * at:.2f} s", SOUND_ID + at) for at in range(1500)))
    shown, texts, _ = labels(axis, 0.005)
    assert texts == [f"{second} s" for second in range(20, 50)]
    assert [axis[at].moment for at in shown] == [f"{second}.00 s" for second in range(20, 50)]
    shown, texts, _ = labels(axis, 0.5)  # where there is room for each
    assert texts[:2] == ["20.00 s", "20.02 s"]


def test_find_and_spans_treat_sound_as_a_part(run, tone, tmp_path):
    sounds.save(tmp_path, "qwen2_audio")
    asked, question = ("--audio", tone, "-m", tmp_path), "what is the cat"
    (found,) = run.json("find", "cat -> sound", question, *asked)["questions"]
    weights = {(head["kind"], head["layer"], head["head"]): head["weight"] for head in found["heads"]}
    model, keep = load(str(tmp_path)), MapObserver(lambda site: range(32) if site.kind == "decoder" else None)
    prepared = model.prepare_audio(tone, question)
    model.run(prepared, [keep])
    heard = [place for place, token in enumerate(prepared.tokens) if token.text.endswith(" s")]
    assert len(heard) > 30
    for layer, kept in enumerate(keep.maps):
        expected = kept.weights[0, :, -1, heard].sum(-1).tolist()
        assert [weights["decoder", layer, head] for head in range(32)] == pytest.approx(expected, abs=1e-5)
    parts = run.json("spans", question, *asked, "--parts", "modality")["parts"]
    assert {"sound", "text"} <= {part["name"] for part in parts}


def test_frame_is_named_by_letter_or_time(run, ctc, noise):
    texts = [token.text for token in load(ctc).prepare_audio(noise).tokens]
    lettered = [number for number, text in enumerate(texts) if re.search(r" · [a-z]$", text)]
    if not lettered:  # random weights are others in each release
        pytest.skip("the random weights read no letter")
    at = lettered[0]
    time, letter = texts[at].split(" · ")
    for name in (texts[at], time, letter):
        ran = run("show", "--audio", noise, "-m", ctc, "--token", name, "--head", "L0H1")
        assert f"{texts[at]} (token {at}) attends to" in ran.out
    assert run("find", f"{letter} -> sound", "--audio", noise, "-m", ctc).code == 0


def test_align_with_ctc_head_reads_or_aligns_text(run, ctc, noise):
    ran = run("align", noise, "-m", ctc)
    assert (ran.code, ran.err) == (0, "")
    assert "by the letters of the CTC head, frame by frame" in ran.out
    assert run.json("align", noise, "-m", ctc)["heads"] == []
    assert " --> " in run("align", noise, "-m", ctc, "--format", "srt").out
    assert "cannot align words by its heads" in run("align", noise, "-m", ctc, "--rank").err
    given = run("align", noise, "ah ha", "-m", ctc).out
    assert re.findall(r"% +(\w+)", given) == ["ah", "ha"]
    assert "the most likely path of the CTC head through the letters of the text" in given
    assert "no letters for 'xyz'" in run("align", noise, "xyz", "-m", ctc).err
