"""Sound as models hear it: which files are read, what reaches the model, and what every frame is called."""

import contextlib
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import transformers

from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.models import load
from attnscope.models.inputs import SoundPart
from attnscope.storage import sound as reading
from attnscope.storage.sound import Sound, read_sound
from tests.capture.tiny import own_attentions
from tests.models import folders, hostile, speech
from tests.models.folders import made_once, maps

START = ["<|startoftranscript|>", "<|notimestamps|>"]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return made_once(
        tmp_path_factory,
        lambda place, name: speech.whisper(place) if name == "whisper" else speech.encoder(place, name),
    )


@pytest.fixture(scope="module")
def tone(tmp_path_factory):
    return speech.sound(tmp_path_factory.mktemp("sounds") / "tone.wav")


@pytest.mark.parametrize("name", speech.ENCODERS)
def test_the_frames_of_an_encoder_are_named_by_their_time(folder_of, tone, name):
    folder = folder_of(name)
    model = load(folder)
    prepared = model.prepare_audio(tone)
    texts = [token.text for token in prepared.tokens]
    assert texts == [f"{0.02 * frame:.2f} s" for frame in range(50)]
    assert not any(token.special for token in prepared.tokens)
    assert len({token.id for token in prepared.tokens}) == 50
    samples, rate = soundfile.read(tone, dtype="float32")
    values = transformers.AutoFeatureExtractor.from_pretrained(folder)(
        samples, sampling_rate=rate, return_tensors="pt"
    )
    expected = folders.eager(folder, input_values=values["input_values"]).attentions
    found = maps(model, prepared)
    assert len(found) == len(expected) == speech.LAYERS
    for kept, weights in zip(found, expected, strict=True):
        assert kept.queries == kept.keys == prepared.tokens
        ours = kept.weights.mean(1, keepdim=True) if name == "wavlm" else kept.weights  # theirs are averaged
        torch.testing.assert_close(ours.expand_as(weights), weights, atol=1e-5, rtol=0)


def test_frames_that_an_encoder_joins_are_as_long_as_they_are_together(tmp_path, tone):
    config = transformers.SEWConfig(**speech.ENCODER, squeeze_factor=2)
    model = load(speech.save(tmp_path, transformers.SEWForCTC(config)))
    prepared = model.prepare_audio(tone)
    assert [token.text for token in prepared.tokens] == [f"{0.04 * frame:.2f} s" for frame in range(25)]
    assert all(kept.keys == prepared.tokens for kept in maps(model, prepared))


def test_whisper_hears_the_sound_and_reads_what_is_said(folder_of, tone):
    folder = folder_of("whisper")
    model = load(folder)
    prepared = model.prepare_audio(tone, "The cat sat.")
    heard, said = prepared.axes["cross"][1], prepared.axes["cross"][0]
    assert [token.text for token in heard] == [f"{0.02 * frame:.2f} s" for frame in range(100)]
    assert [token.special for token in heard] == [frame >= 50 for frame in range(100)]  # the rest is padding
    texts = [token.text for token in said]
    assert texts[0] == START[0]
    assert texts[1] in ("<|en|>", "<|de|>")
    assert texts[2:4] == ["<|transcribe|>", START[1]]
    assert "".join(texts[4:]).strip() == "Thecatsat."
    samples, rate = soundfile.read(tone, dtype="float32")
    features = transformers.AutoFeatureExtractor.from_pretrained(folder)(
        samples, sampling_rate=rate, return_tensors="pt"
    )
    ids = torch.tensor([[token.id for token in said]])
    kind = transformers.WhisperForConditionalGeneration
    expected = own_attentions(folders.eager(folder, kind, **features, decoder_input_ids=ids))
    found = maps(model, prepared)
    assert len(found) == 3 * speech.LAYERS
    for kept in found:
        weights = expected[kept.site.kind][kept.site.layer]
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)


def test_the_language_is_the_one_that_transformers_hears(folder_of, tone):
    folder = folder_of("whisper")
    prepared = load(folder).prepare_audio(tone)
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    language = theirs.detect_language(prepared.inputs["input_features"])
    assert [token.id for token in prepared.axes["decoder"][0]][1] == language.item()
    assert any("the language is <|" in note for note in prepared.notes)


def test_a_language_that_the_tokenizer_names_is_not_asked_of_the_model(tmp_path, tone):
    folder = speech.whisper(tmp_path)
    named = transformers.AutoTokenizer.from_pretrained(folder, language="english", task="translate")
    named.save_pretrained(folder)
    prepared = load(folder).prepare_audio(tone)
    told = [token.text for token in prepared.axes["decoder"][0]]
    assert told == [START[0], "<|en|>", "<|translate|>", START[1]]
    assert not any("the language is" in note for note in prepared.notes)


def test_what_is_said_fits_behind_the_start_or_is_cut_there(folder_of, tone):
    """The tiny decoder reads 48 tokens, of which it starts with four."""
    model = load(folder_of("whisper"))
    tokens = {count: len(model.prepare_audio(tone, "s" * count).axes["cross"][0]) for count in (1, 2)}
    most = 1 + (48 - tokens[1]) // (tokens[2] - tokens[1])
    assert len(model.prepare_audio(tone, "s" * most).axes["cross"][0]) == 48
    with pytest.raises(InputError, match=r"49 tokens and .* reads at most 48"):
        model.prepare_audio(tone, "s" * (most + 1))
    cut = model.prepare_audio(tone, "s" * (most + 5), part=SoundPart(truncate=True))
    assert [token.id for token in cut.axes["cross"][0]] == [
        token.id for token in model.prepare_audio(tone, "s" * most).axes["cross"][0]
    ]
    assert any("cut" in note and "48" in note for note in cut.notes)


def test_what_is_written_is_what_transformers_writes(folder_of, tone):
    folder = folder_of("whisper")
    model = load(folder, generative=True)
    prompt = model.prepare_audio(tone)
    written = model.generate(prompt, 6)
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    language = prompt.axes["decoder"][0][1].text.strip("<|>")
    expected = theirs.generate(
        prompt.inputs["input_features"], language=language, task="transcribe", max_new_tokens=6
    )
    start = len(prompt.axes["decoder"][0])
    found = [token.id for token in written.axes["decoder"][0][start:]]
    assert (
        found == [id_ for id_ in expected[0].tolist() if id_ != speech.spell("<|endoftext|>")][-len(found) :]
    )
    assert {layer.site.kind for layer in model.run(written, []).sites} >= {"decoder", "cross"}


@pytest.mark.parametrize(
    ("rate", "channels", "suffix"),
    [(8000, 1, "wav"), (11127, 1, "wav"), (44100, 2, "flac"), (48000, 6, "wav"), (16000, 2, "flac")],
)
def test_any_rate_and_any_channels_are_heard_as_the_same_tone(tmp_path, rate, channels, suffix):
    plain = read_sound(speech.sound(tmp_path / "plain.wav"))
    other = read_sound(speech.sound(tmp_path / f"other.{suffix}", rate=rate, channels=channels))
    assert other.rate == rate
    again = other.resample(16000)
    assert abs(len(again.samples) - 16000) <= 1
    middle = slice(500, 5500)  # away from edges, where filters ring
    np.testing.assert_allclose(again.samples[middle], plain.samples[middle], atol=0.02)


def test_a_pure_tone_keeps_its_pitch_at_another_rate(tmp_path):
    wave = np.sin(2 * np.pi * 440 * np.arange(22050) / 22050)
    soundfile.write(tmp_path / "a.wav", wave, 22050)
    again = read_sound(tmp_path / "a.wav").resample(16000).samples
    assert np.argmax(np.abs(np.fft.rfft(again))) == 440


def test_rates_without_a_common_part_need_no_filter_as_long_as_both():
    """A gigabyte of it: a file chooses its rate."""
    wave = np.sin(2 * np.pi * 50 * np.arange(2 * 767_999) / 767_999).astype(np.float32)
    tracemalloc.start()
    again = Sound(wave, 767_999).resample(16000).samples
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20
    assert len(again) == 32000
    expected = np.sin(2 * np.pi * 50 * np.arange(32000) / 16000)
    np.testing.assert_allclose(again[200:-200], expected[200:-200], atol=0.002)


def test_a_file_that_came_through_a_pipe_says_what_it_lacks(tmp_path):
    """Its number of samples is 0, which stands for unknown; its decoder stumbles at the end."""
    whole = bytearray(speech.sound(tmp_path / "a.flac", 1.0).read_bytes())
    whole[21] &= 0xF0
    whole[22:26] = bytes(4)
    (tmp_path / "piped.flac").write_bytes(whole)
    assert read_sound(tmp_path / "piped.flac", 0.0, 0.5).seconds == 0.5
    with contextlib.suppress(InputError):  # a decoder that knows no better
        assert read_sound(tmp_path / "piped.flac").seconds == 1.0


@pytest.mark.parametrize("name", ["whisper", "wav2vec2"])
def test_silence_is_heard_too(folder_of, tmp_path, name):
    soundfile.write(tmp_path / "silence.wav", np.zeros(16000), 16000)
    model = load(folder_of(name))
    prepared = model.prepare_audio(tmp_path / "silence.wav")
    assert all(torch.isfinite(kept.weights).all() for kept in maps(model, prepared))


def no_sounds(folder: Path):
    """Files that cannot be heard, and a word of the sentence that says so."""
    wave = speech.sound(folder / "whole.wav", 0.5).read_bytes()
    flac = speech.sound(folder / "whole.flac", 0.5).read_bytes()
    yield "missing.wav", None, "no such file"
    yield "nothing.wav", b"", "is empty"
    yield "text.wav", b"The cat sat on the mat.", "is not a WAV or FLAC file"
    yield "vorbis.wav", b"OggS" + bytes(60), "is not a WAV or FLAC file"
    yield "header.wav", wave[:44], "has no samples"
    yield "half.wav", wave[:20], "cannot be read as sound"
    yield "half.flac", flac[:20], "cannot be read as sound"
    yield "fast.wav", wave[:24] + struct.pack("<I", 2**31 - 1) + wave[28:], "samples a second"
    yield "many.wav", wave[:22] + struct.pack("<H", 999) + wave[24:], "many.wav"
    yield "short.wav", speech.sound(folder / "s.wav", 0.001).read_bytes(), "too short"
    loud = np.full(16000, 3e38, np.float32)
    soundfile.write(folder / "l.wav", loud, 16000, subtype="FLOAT")
    yield "loud.wav", (folder / "l.wav").read_bytes(), "or far too large"
    nothing = np.full(16000, np.nan, np.float32)
    soundfile.write(folder / "n.wav", nothing, 16000, subtype="FLOAT")
    yield "nan.wav", (folder / "n.wav").read_bytes(), "no numbers"


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("whisper", {"dither": 1e38}, "makes values of"),
        ("whisper", {"chunk_length": 4, "n_samples": 64000}, r"fails on inputs of shape \[1, 16, 400\]"),
        ("whisper", {"n_fft": 10**12}, "feature extractor"),
        ("wav2vec2", {"sampling_rate": 10**12}, "samples a second"),
    ],
)
def test_a_feature_extractor_that_does_not_fit_ends_in_a_sentence(
    folder_of, tmp_path, tone, name, changes, sentence
):
    place = Path(shutil.copytree(folder_of(name), tmp_path / "model"))
    model = load(str(hostile.folder(place, "preprocessor_config.json", **changes)), generative=True)
    with pytest.raises(AttnscopeError, match=sentence):
        model.prepare_audio(tone, "the cat" if name == "whisper" else None)


def test_what_is_no_sound_ends_in_a_sentence(folder_of, tmp_path):
    model = load(folder_of("wav2vec2"))
    for name, content, sentence in no_sounds(tmp_path):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=sentence):
            model.prepare_audio(tmp_path / name)
    with pytest.raises(InputError, match="is a folder"):
        model.prepare_audio(tmp_path)


def test_a_claimed_length_takes_no_memory(tmp_path):
    flac = bytearray(speech.sound(tmp_path / "a.flac", 0.5).read_bytes())
    flac[21] |= 0x0F  # the upper bits of the number of samples
    (tmp_path / "long.flac").write_bytes(flac)
    with contextlib.suppress(InputError):  # either is honest
        assert len(read_sound(tmp_path / "long.flac").samples) <= 16000


def test_a_part_that_is_none_ends_in_a_sentence(tone):
    assert read_sound(tone, 0.25, 0.5).seconds == 0.25
    nan, endless = float("nan"), float("inf")
    for begin, end in [(each, None) for each in (nan, endless, -1, 7)] + [(0, nan), (0, endless), (0.5, 0.2)]:
        with pytest.raises(InputError, match=r"there is no sound|is behind that"):
            read_sound(tone, begin, end)


@pytest.mark.parametrize(("dense", "over", "fits"), [(None, 1.5, 1.0), (8000, 0.6, 0.5)])
@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_what_is_too_long_is_not_decoded_and_a_dense_sound_has_as_many_samples(
    tmp_path, monkeypatch, suffix, dense, over, fits
):
    monkeypatch.setattr(reading, "LONGEST", 1)
    monkeypatch.setattr(reading, "DENSE", dense or reading.DENSE)
    with pytest.raises(InputError, match="longer than"):
        read_sound(speech.sound(tmp_path / f"long.{suffix}", over))
    assert read_sound(speech.sound(tmp_path / f"fits.{suffix}", fits)).seconds == fits


def test_what_is_longer_than_a_model_hears_at_once_is_refused_or_cut(folder_of, tmp_path):
    path = speech.sound(tmp_path / "long.wav", 3.0)
    model = load(folder_of("whisper"))
    with pytest.raises(InputError, match="hears at most 2 at once"):
        model.prepare_audio(path)
    prepared = model.prepare_audio(path, part=SoundPart(truncate=True))
    assert not any(token.special for token in prepared.tokens)
    assert "cut: the first 2 of 3.0 seconds are heard" in prepared.notes


def test_what_does_not_go_together_is_told_so(folder_of, tone, tmp_path):
    encoder, whisper = load(folder_of("wav2vec2"), generative=True), load(folder_of("whisper"))
    with pytest.raises(InputError, match="takes sound, not text"):
        encoder.prepare_audio(tone, "The cat sat.")
    with pytest.raises(ModelError, match="transcribes without a decoder"):
        encoder.generate(encoder.prepare_audio(tone), 3)
    with pytest.raises(InputError, match="give it with --audio"):
        whisper.prepare("The cat sat.")
    with pytest.raises(InputError, match="does not take sound"):
        load(folders.gpt2(tmp_path)).prepare_audio(tone)
