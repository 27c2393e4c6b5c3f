"""Sound: which files are read, what reaches the model, and the names of frames."""

import contextlib
import shutil
import struct
import tracemalloc
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.models import load
from attnscope.models.huggingface.sounds import find_frames
from attnscope.models.inputs import SoundPart
from attnscope.storage import sound as reading
from attnscope.storage.sound import Sound, read_sound
from tests.models import folders, speech
from tests.models.folders import eager, eager_maps, made_once, maps
from tests.tools import sounds

START = ["<|startoftranscript|>", "<|notimestamps|>"]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """The folder of a tiny model that hears, made once."""

    def make(folder, name):
        if name == "whisper":
            return speech.whisper(folder)
        if name in speech.ENCODERS:
            return speech.encoder(folder, name)
        try:
            CONFIG_MAPPING[name].from_dict(CONFIG_MAPPING[name]().to_dict())
        except (KeyError, OSError, ValueError):
            pytest.skip(f"this transformers makes no config of {name} by itself")
        try:
            sounds.save(folder, name)
        except ImportError as error:  # older releases of transformers ask for more packages
            pytest.skip(str(error))
        return str(folder)

    return made_once(tmp_path_factory, make)


@pytest.fixture(scope="module")
def model_of(folder_of):
    return cache(lambda name: load(folder_of(name)))


@pytest.fixture(scope="module")
def tone(tmp_path_factory):
    return speech.sound(tmp_path_factory.mktemp("sounds") / "tone.wav")


@pytest.fixture(scope="module")
def longer_tone(tmp_path_factory):
    return speech.sound(tmp_path_factory.mktemp("sounds") / "tone.wav", 2.0)


def names(tokens):
    return [token.text for token in tokens]


def times(count, step=0.02):
    return [f"{step * frame:.2f} s" for frame in range(count)]


def moments(prepared):
    """The times of the tokens of a sound in a text, by their places."""
    texts = enumerate(names(prepared.tokens))
    return {place: float(text.removesuffix(" s")) for place, text in texts if text.endswith(" s")}


@pytest.mark.sweep
@pytest.mark.parametrize("name", speech.ENCODERS)
def test_encoder_frames_are_named_by_time(folder_of, model_of, tone, name):
    folder, model = folder_of(name), model_of(name)
    prepared = model.prepare_audio(tone)
    assert names(prepared.tokens) == times(50)
    assert not any(token.special for token in prepared.tokens)
    assert len({token.id for token in prepared.tokens}) == 50
    output = eager(folder, input_values=speech.extract(folder, tone)["input_values"])
    if name == "wavlm":  # which reports the mean of its heads
        (kept, *_), (weights, *_) = maps(model, prepared), output.attentions
        mean = kept.weights.mean(1, keepdim=True)
        torch.testing.assert_close(mean.expand_as(weights), weights, atol=1e-5, rtol=0)
    else:
        kept, *_ = eager_maps(model, prepared, output)
    assert kept.queries == kept.keys == prepared.tokens


def test_whisper_reads_sound_and_transcript(folder_of, model_of, tone):
    folder, model = folder_of("whisper"), model_of("whisper")
    prepared = model.prepare_audio(tone, "The cat sat.")
    said, heard = prepared.axes["cross"]
    assert names(heard) == times(100)
    assert [token.special for token in heard] == [frame >= 50 for frame in range(100)]  # the rest is padding
    start, language, task, stamps, *texts = names(said)
    assert (start, task, stamps) == (START[0], "<|transcribe|>", START[1])
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    assert said[1].id == theirs.detect_language(prepared.inputs["input_features"]).item()
    assert f"the language is {language}" in prepared.notes[0]
    assert "".join(texts).strip() == "Thecatsat."
    ids = torch.tensor([[token.id for token in said]])
    kind = transformers.WhisperForConditionalGeneration
    eager_maps(model, prepared, eager(folder, kind, **speech.extract(folder, tone), decoder_input_ids=ids))


def test_tokenizer_language_is_not_detected_again(tmp_path, tone):
    folder = speech.whisper(tmp_path)
    named = transformers.AutoTokenizer.from_pretrained(folder, language="english", task="translate")
    named.save_pretrained(folder)
    prepared = load(folder).prepare_audio(tone)
    assert names(prepared.axes["decoder"][0]) == [START[0], "<|en|>", "<|translate|>", START[1]]
    assert not any("the language is" in note for note in prepared.notes)


def test_transcript_is_cut_to_the_decoder_length(model_of, tone):
    """The tiny decoder reads 48 tokens, of which it starts with four."""
    model = model_of("whisper")

    def read(count, **how):
        prepared = model.prepare_audio(tone, "s" * count, part=SoundPart(**how))
        return [token.id for token in prepared.axes["cross"][0]], prepared.notes

    one, two = (len(read(count)[0]) for count in (1, 2))
    most = 1 + (48 - one) // (two - one)
    assert len(read(most)[0]) == 48
    with pytest.raises(InputError, match=r"49 tokens and .* reads at most 48"):
        read(most + 1)
    ids, notes = read(most + 5, truncate=True)
    assert ids == read(most)[0]
    assert any("cut" in note and "48" in note for note in notes)


def test_whisper_generation_equals_transformers(folder_of, tone):
    folder = folder_of("whisper")
    model = load(folder, generative=True)
    prompt = model.prepare_audio(tone)
    written = model.generate(prompt, 6)
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    _, language, *_ = start = prompt.axes["decoder"][0]
    how = {"language": language.text.strip("<|>"), "task": "transcribe", "max_new_tokens": 6}
    ids = theirs.generate(prompt.inputs["input_features"], **how)[0].tolist()
    expected = [id_ for id_ in ids if id_ != speech.spell("<|endoftext|>")]
    found = [token.id for token in written.axes["decoder"][0][len(start) :]]
    assert found == expected[-len(found) :]
    assert {layer.site.kind for layer in model.run(written, []).sites} >= {"decoder", "cross"}


@pytest.mark.parametrize(
    ("rate", "channels", "suffix"),
    [(8000, 1, "wav"), (11127, 1, "wav"), (44100, 2, "flac"), (48000, 6, "wav"), (16000, 2, "flac")],
)
def test_any_rate_and_channels_resample_to_the_same_tone(tmp_path, rate, channels, suffix):
    plain = read_sound(speech.sound(tmp_path / "plain.wav"))
    other = read_sound(speech.sound(tmp_path / f"other.{suffix}", rate=rate, channels=channels))
    assert other.rate == rate
    again = other.resample(16000)
    assert abs(len(again.samples) - 16000) <= 1
    middle = slice(500, 5500)  # away from edges, where filters ring
    np.testing.assert_allclose(again.samples[middle], plain.samples[middle], atol=0.02)


def test_resampling_coprime_rates_needs_little_memory():
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


def test_sample_count_in_file_header_is_not_trusted(tmp_path):
    flac = bytearray(speech.sound(tmp_path / "a.flac", 0.5).read_bytes())
    flac[21] |= 0x0F  # its upper bits
    (tmp_path / "long.flac").write_bytes(flac)
    with contextlib.suppress(InputError):  # either is honest
        assert len(read_sound(tmp_path / "long.flac").samples) <= 16000
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)  # 0 stands for unknown
    (tmp_path / "piped.flac").write_bytes(flac)
    with pytest.raises(InputError, match="does not say how long it is, as from a pipe: write it anew"):
        read_sound(tmp_path / "piped.flac", 0.0, 0.25)


def no_sounds(folder: Path):
    """Files that cannot be heard, and a word of the sentence that says so."""
    wave = speech.sound(folder / "whole.wav", 0.5).read_bytes()
    flac = speech.sound(folder / "whole.flac", 0.5).read_bytes()
    yield "missing.wav", None, "no such file"
    yield "nothing.wav", b"", "is empty"
    yield "text.wav", b"The cat sat on the mat.", "is not a WAV or FLAC file"
    yield "header.wav", wave[:44], "has no samples"
    yield "half.flac", flac[:20], "cannot read "
    yield "fast.wav", wave[:24] + struct.pack("<I", 2**31 - 1) + wave[28:], "samples a second"
    yield "many.wav", wave[:22] + struct.pack("<H", 999) + wave[24:], "many.wav"
    yield "short.wav", speech.sound(folder / "s.wav", 0.001).read_bytes(), "too short"
    for name, value, sentence in (("loud", 3e38, "or far too large"), ("nan", np.nan, "no numbers")):
        file = folder / f"{name}.wav"
        soundfile.write(file, np.full(16000, value, np.float32), 16000, subtype="FLOAT")
        yield file.name, file.read_bytes(), sentence


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("whisper", {"dither": 1e38}, "makes values of"),
        ("whisper", {"chunk_length": 4, "n_samples": 64000}, r"fails on inputs of shape \[1, 16, 400\]"),
        ("whisper", {"n_fft": 10**12}, "feature extractor"),
        ("wav2vec2", {"sampling_rate": 10**12}, "samples a second"),
    ],
)
def test_mismatched_feature_extractor_is_refused(folder_of, tmp_path, tone, name, changes, sentence):
    place = shutil.copytree(folder_of(name), tmp_path / "model")
    model = load(folders.changed(place, "preprocessor_config.json", **changes), generative=True)
    with pytest.raises(AttnscopeError, match=sentence):
        model.prepare_audio(tone, "the cat" if name == "whisper" else None)


def test_unreadable_sound_is_one_sentence(model_of, tmp_path):
    model = model_of("wav2vec2")
    for name, content, sentence in no_sounds(tmp_path):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=sentence):
            model.prepare_audio(tmp_path / name)
    with pytest.raises(InputError, match="is a folder"):
        model.prepare_audio(tmp_path)


def test_invalid_sound_part_is_one_sentence(tone):
    assert read_sound(tone, 0.25, 0.5).seconds == 0.25
    nan, endless = float("nan"), float("inf")
    nothing, behind = "there is no sound", "ends at 1.00 seconds: 7 is behind that"
    for begin, sentence in ((nan, nothing), (endless, nothing), (-1, nothing), (7, behind)):
        with pytest.raises(InputError, match=sentence):
            read_sound(tone, begin)
    for end in (nan, endless, 0.2):
        with pytest.raises(InputError, match=nothing):
            read_sound(tone, 0.5, end)


@pytest.mark.parametrize(("dense", "over", "fits"), [(None, 1.5, 1.0), (8000, 0.6, 0.5)])
@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_too_long_or_dense_sound_is_not_decoded(tmp_path, monkeypatch, suffix, dense, over, fits):
    monkeypatch.setattr(reading, "MOST_SECONDS", 1)
    monkeypatch.setattr(reading, "MOST_RATE", dense or reading.MOST_RATE)
    with pytest.raises(InputError, match="longer than"):
        read_sound(speech.sound(tmp_path / f"long.{suffix}", over))
    assert read_sound(speech.sound(tmp_path / f"fits.{suffix}", fits)).seconds == fits


def test_too_long_sound_is_refused_or_cut_with_a_note(model_of, tmp_path):
    longer = speech.sound(tmp_path / "longer.wav", 40.0)
    with pytest.raises(InputError, match=r"into 2 pieces that it reads apart: choose a part"):
        model_of("cohere_asr").prepare_audio(longer)
    cut = model_of("audio-spectrogram-transformer").prepare_audio(longer)
    assert any("the end of the sound is not read" in note for note in cut.notes)
    path, model = speech.sound(tmp_path / "long.wav", 3.0), model_of("whisper")
    with pytest.raises(InputError, match="reads at most 2 in one pass"):
        model.prepare_audio(path)
    prepared = model.prepare_audio(path, part=SoundPart(truncate=True))
    assert not any(token.special for token in prepared.tokens)
    assert "cut: the first 2 of 3.0 seconds are read" in prepared.notes


def test_incompatible_sound_and_text_inputs_are_refused(folder_of, model_of, tone, tmp_path):
    encoder, whisper = load(folder_of("wav2vec2"), generative=True), model_of("whisper")
    with pytest.raises(InputError, match="takes sound, not text"):
        encoder.prepare_audio(tone, "The cat sat.")
    with pytest.raises(ModelError, match="transcribes without a decoder"):
        encoder.generate(encoder.prepare_audio(tone), 3)
    with pytest.raises(InputError, match="give it with --audio"):
        whisper.prepare("The cat sat.")
    with pytest.raises(InputError, match="does not take sound"):
        load(folders.gpt2(tmp_path)).prepare_audio(tone)
    with pytest.raises(InputError, match="reads a text beside the sound"):
        model_of("qwen2_audio").prepare_audio(tone)
    for name in ("voxtral_realtime", "clap"):  # which hear in a way that is not known, and are not deaf
        with pytest.raises(InputError, match="takes sound, but how it joins sound and text is not"):
            model_of(name).prepare_audio(tone, "the cat")
    with pytest.raises(InputError, match=r"processor of .* refuses this: .*`apply_chat_template`"):
        model_of("voxtral").prepare_audio(tone, "the cat")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "frames", "second"),
    [("speecht5", 99, "0.02 s"), ("speech-encoder-decoder", 99, "0.02 s"), ("cohere_asr", 26, "0.08 s")],
)
def test_speech_encoder_decoder_weights_equal_eager(folder_of, model_of, longer_tone, name, frames, second):
    model = model_of(name)
    prepared = model.prepare_audio(longer_tone)
    output = eager(folder_of(name), type(model.module), **prepared.inputs, use_cache=False)
    found = eager_maps(model, prepared, output)
    assert {kept.site.kind for kept in found} == {"encoder", "decoder", "cross"}
    assert (len(prepared.tokens), prepared.tokens[1].text) == (frames, second)
    heard = prepared.axes["cross"][1]
    assert all(kept.keys == heard for kept in found if kept.site.kind == "cross")
    assert heard == prepared.tokens or heard[1].text == "0.16 s"  # eight neighbours are joined


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["seamless_m4t", "mimi", "audio-spectrogram-transformer"])
def test_frames_without_duration_are_numbered_with_a_note(model_of, longer_tone, name):
    """Mimi's feature extractor makes no mask, and refuses to be asked for one."""
    model = model_of(name)
    prepared = model.prepare_audio(longer_tone)
    assert prepared.sound is None
    assert any("numbered, without times" in note for note in prepared.notes)
    assert not any("the end of the sound is not read" in note for note in prepared.notes)
    assert maps(model, prepared)


@pytest.mark.parametrize("name", ["parakeet_encoder", "speech_to_text", "whisper"])
def test_spectrogram_loudness_follows_sound_in_any_layout(model_of, tmp_path, name):
    wave = 0.3 * np.random.default_rng(0).standard_normal(32000)
    wave[:16000] *= 0.001
    soundfile.write(tmp_path / "late.wav", wave, 16000)
    heard = model_of(name).prepare_audio(tmp_path / "late.wav").sound
    loud = heard.bands[:, : heard.frames].mean(0)
    half = len(loud) // 2
    assert loud[half + 1 :].min() > loud[: half - 1].max()


@pytest.mark.parametrize(("name", "crosses"), [("whisper", True), ("parakeet_rnnt", False)])
def test_cross_attention_is_noted_where_it_ran(model_of, longer_tone, name, crosses):
    """A transducer adds frames to tokens: it has no cross-attention, although it writes."""
    model = model_of(name)
    prepared = model.prepare_audio(longer_tone)
    record = model.run(prepared, [])
    assert any(call.site.kind == "cross" for call in record.sites) == crosses
    notes = (*prepared.notes, *record.notes)
    assert sum("predicts the next" in note for note in notes) == crosses


def test_waveform_with_channel_axis_is_accepted(model_of, longer_tone):
    prepared = model_of("xcodec").prepare_audio(longer_tone)
    assert names(prepared.tokens) == times(100)
    assert prepared.sound.bands.shape[1] == 100


PREPARED = ["wav2vec2-bert", "parakeet_ctc", "speecht5", "moonshine_streaming", "whisper"]


@pytest.mark.parametrize("name", PREPARED)
def test_speech_inputs_equal_those_of_the_processor(folder_of, model_of, tmp_path, name):
    """With its mask of padding, where it has one; and its output is that of transformers' own call."""
    folder, model = folder_of(name), model_of(name)
    kind = transformers.models.auto.processing_auto.PROCESSOR_MAPPING[type(model.module.config)]
    if name == "moonshine_streaming" and not hasattr(kind, "audio_kwargs"):
        pytest.skip("this release of transformers says it within its call")
    path = speech.sound(tmp_path / "odd.wav", 1.987)
    samples, rate = soundfile.read(path, dtype="float32")
    prepared = model.prepare_audio(path)
    own = kind(transformers.AutoFeatureExtractor.from_pretrained(folder), model.reader.tokenizer)
    given = dict(own(audio=samples, sampling_rate=rate, return_tensors="pt"))
    beside = {key: value for key, value in prepared.inputs.items() if key == "decoder_input_ids"}
    assert set(prepared.inputs) == {*given, *beside}
    with torch.inference_mode():
        expected = next(iter(model.module(**given, **beside).values()))
        found = next(iter(model.module(**prepared.inputs, **prepared.settings).values()))
    assert torch.equal(found, expected)
    silent = [token.special for token in prepared.tokens]
    assert silent.index(True) == 99 if name == "whisper" else sum(silent) <= 1


def test_stacked_frames_have_their_summed_duration():
    """As an extractor makes 100 steps of two seconds, in hops of a hundredth."""

    halving, extractor = torch.nn.Module(), SimpleNamespace(hop_length=160, feature_size=8)
    halving.config = transformers.PretrainedConfig()
    halving._get_subsampling_output_length = lambda lengths: lengths // 4
    given = torch.zeros(1, 100, 16), 100, Sound(np.zeros(32000, np.float32), 16000), extractor
    heard, tokens = find_frames("it", halving, *given)
    assert (len(tokens), heard.frames, heard.seconds) == (25, 25, 0.08)
    halving._get_subsampling_output_length = lambda lengths: lengths // 4 + 50
    assert find_frames("it", halving, *given) is None


SECONDS = {
    "qwen2_audio": 0.04,  # one vector for two frames of Whisper's encoder
    "audioflamingo3": 0.04,  # the same, with no tokens around the sound
    "glmasr": 0.08,  # one vector for four frames
    "moss_transcribe_diarize": 0.08,  # four frames again, and numbers that say the time between them
}
"""How long a token of each is, as its authors have it."""


@pytest.mark.sweep
@pytest.mark.parametrize("name", SECONDS)
def test_sound_tokens_are_named_by_time(model_of, longer_tone, name):
    prepared, seconds = model_of(name).prepare_audio(longer_tone, "the cat"), SECONDS[name]
    named, ids = moments(prepared), prepared.inputs["input_ids"][0]
    assert list(named.values()) == pytest.approx([n * seconds for n in range(round(2.0 / seconds))])
    assert list(named) == (ids == ids[next(iter(named))]).nonzero()[:, 0].tolist()
    assert prepared.first_kind == "decoder"
    assert not prepared.notes


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["qwen2_audio", "glmasr"])
def test_sound_and_text_weights_equal_eager(folder_of, model_of, longer_tone, name):
    model = model_of(name)
    prepared = model.prepare_audio(longer_tone, "the cat")
    answer = eager(folder_of(name), type(model.module), **prepared.inputs, use_cache=False)
    with torch.inference_mode():
        states = model.module(**prepared.inputs, use_cache=False)[0]
    if not torch.allclose(states, answer[0], atol=1e-4):
        pytest.skip("this release of transformers computes other states under eager attention")
    found = [kept for kept in maps(model, prepared) if kept.site.kind == "decoder"]
    for kept, weights in zip(found, answer.attentions, strict=True):
        torch.testing.assert_close(kept.weights, weights[:, :2], atol=1e-5, rtol=0)
        assert kept.keys == prepared.tokens


def test_times_of_per_second_chunks_do_not_drift(model_of, tmp_path):
    """Thirteen in a second of a hundred steps, by stacked halvings: the last has fewer steps."""
    prepared = model_of("qwen3_asr").prepare_audio(speech.sound(tmp_path / "long.wav", 25.3), "the cat")
    named = list(moments(prepared).values())
    assert named[:14] == [round(0.08 * number, 2) for number in range(13)] + [1.0]
    assert named[13 * 25 :] == [25.0, 25.08, 25.16, 25.24]


@pytest.mark.parametrize("name", ["qwen2_audio", "qwen3_asr"])
def test_shortest_sound_has_one_token(model_of, tmp_path, name):
    prepared = model_of(name).prepare_audio(speech.sound(tmp_path / "short.wav", 0.06), "the cat")
    assert next(iter(moments(prepared).values())) == 0
    assert prepared.sound.frames == 1


def test_sound_part_keeps_the_times_of_its_file(model_of, tmp_path):
    path = speech.sound(tmp_path / "long.wav", 3.0)
    prepared = model_of("qwen2_audio").prepare_audio(path, "the cat", SoundPart(1.0, 2.0))
    named = list(moments(prepared).values())
    assert (named[0], named[-1], len(named)) == (1.0, 1.96, 25)
