"""``--audio`` as a user meets it."""

import json
import sys

import numpy as np
import pytest

from attnscope.models import load
from tests.models import speech


@pytest.fixture(scope="module")
def tone(tmp_path_factory):
    return speech.sound(tmp_path_factory.mktemp("sounds") / "tone.wav")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return speech.whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return speech.encoder(tmp_path_factory.mktemp("hubert"), "hubert")


def test_every_head_is_shown_of_a_sound_too(run, encoder, tone):
    ran = run("show", "--audio", tone, "-m", encoder)
    assert (ran.code, ran.err) == (0, "")
    assert "2 layers × 2 heads · 50 tokens" in ran.out
    assert "no head stands out from even attention" in ran.out  # of random weights


def test_a_moment_is_a_token(run, encoder, tone):
    ran = run("show", "--audio", tone, "-m", encoder, "--token", "0.32 s", "--head", "L0H1")
    assert "0.32 s (token 16) looks at" in ran.out


def test_a_word_looks_at_moments(run, whisper, tone):
    shown = run("show", "The cat sat.", "--audio", tone, "-m", whisper, "--kind", "cross", "--head", "L1H0")
    assert shown.code == 0
    answer = json.loads(
        run(
            "show", "The cat sat.", "--audio", tone, "-m", whisper, "--head", "cross L1H0", "--token", "cat",
            "--json",
        ).out
    )  # fmt: skip
    assert all(key["text"].endswith(" s") for key in answer["looks_at"])


def test_what_is_written_is_shown(run, whisper, tone):
    ran = run("show", "--audio", tone, "-m", whisper, "--generate", "5", "--kind", "cross")
    assert ran.code == 0
    assert "<|transcribe|> <|notimestamps|> │ " in ran.out.replace("\n", " ")


def test_a_sound_is_measured_and_kept(run, whisper, tone, tmp_path):
    assert run("stats", "The cat sat.", "--audio", tone, "-m", whisper).code == 0
    kept = tmp_path / "sound.trace"
    assert run("show", "The cat sat.", "--audio", tone, "-m", whisper, "--keep", kept).code == 0
    assert "0.02 s" in run("show", "--from", kept, "--head", "cross L0H0", "--json").out


def test_without_soundfile_it_says_what_to_install(run, encoder, tone, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    run("show", "--audio", tone, "-m", encoder).refuses("pip install 'attnscope[audio]'")


def test_columns_are_counted_in_seconds(run, whisper, tone):
    out = run("show", "The cat sat.", "--audio", tone, "-m", whisper, "--head", "cross L0H0").out
    assert "0.00 s    0.40 s    0.80 s" in out
    assert "columns:" not in out


def test_what_finds_words_in_the_sound_is_shown_first(run, whisper, tone, tmp_path):
    kept = tmp_path / "sound.trace"
    asked = ["show", "The cat sat.", "--audio", tone, "-m", whisper]
    assert run(*asked).out.index("cross-attention") < run(*asked).out.index("encoder attention")
    run(*asked, "--keep", kept)
    out = run("show", "--from", kept).out
    assert out.index("cross-attention") < out.index("encoder attention")


def test_the_spectrogram_stands_above_the_picture(whisper, tone):
    from attnscope.questions.head import one_head
    from attnscope.render.image import drawing

    model = load(whisper)
    prepared = model.prepare_audio(tone, "The cat sat.")
    view = one_head(model, prepared, "cross L0H1").heatmap
    features = prepared.inputs["input_features"][0].numpy()  # [band, step]
    pairs = (features[:, ::2] + features[:, 1::2]) / 2
    levels = (pairs - pairs.min()) / (pairs.max() - pairs.min())
    np.testing.assert_allclose(view.bands, levels, atol=1e-6)
    with drawing(view) as (figure, _):
        shapes = [one.images[0].get_array().shape for one in figure.axes if one.images]
        whole, strip = (figure.axes[shapes.index(shape)] for shape in (view.values.shape, levels.shape))
        assert strip.get_position().y0 >= whole.get_position().y1
        assert strip.get_position().x0 == pytest.approx(whole.get_position().x0)
        np.testing.assert_allclose(strip.images[0].get_array(), levels, atol=1e-6)
    assert one_head(model, prepared, "encoder L0H1").heatmap.bands is None


def test_long_sounds_have_round_seconds_along_their_axis():
    from attnscope.attention import Token
    from attnscope.axes import HEARD, places
    from attnscope.render.image.sheet import labels

    axis = places(tuple(Token(f"{20 + 0.02 * at:.2f} s", HEARD + at) for at in range(1500)))
    shown, texts, _ = labels(axis, 0.005)
    assert texts == [f"{second} s" for second in range(20, 50)]
    assert [axis[at].moment for at in shown] == [f"{second}.00 s" for second in range(20, 50)]
    shown, texts, _ = labels(axis, 0.5)  # where there is room for each
    assert texts[:2] == ["20.00 s", "20.02 s"]
