"""Models that hear by other ways than Whisper's: several encoders, layers around a base, sounds in texts."""

import json

import numpy as np
import pytest
import soundfile
import torch
import transformers
from safetensors.torch import save_file

from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.models.huggingface.sounds import find_frames
from attnscope.models.inputs import SoundPart
from attnscope.storage.sound import Sound
from tests.capture.tiny import own_attentions
from tests.models import folders, hearing, speech
from tests.models.folders import eager, maps
from tests.tools import sounds


@pytest.fixture(scope="module")
def tone(tmp_path_factory):
    return speech.sound(tmp_path_factory.mktemp("sounds") / "tone.wav", 2.0)


def save(folder, name):
    try:
        sounds.save(folder, name)
    except ImportError as error:  # older releases of transformers ask for more packages
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("name", "frames", "second"),
    [("speecht5", 99, "0.02 s"), ("speech-encoder-decoder", 99, "0.02 s"), ("cohere_asr", 26, "0.08 s")],
)
def test_what_hears_and_writes_is_seen_whole(tmp_path, tone, name, frames, second):
    save(tmp_path, name)
    model = load(str(tmp_path))
    prepared = model.prepare_audio(tone)
    found = maps(model, prepared)
    assert {kept.site.kind for kept in found} == {"encoder", "decoder", "cross"}
    assert (len(prepared.tokens), prepared.tokens[1].text) == (frames, second)
    heard = prepared.axes["cross"][1]
    assert all(kept.keys == heard for kept in found if kept.site.kind == "cross")
    assert heard == prepared.tokens or heard[1].text == "0.16 s"  # eight neighbours are joined
    output = eager(tmp_path, type(model.module), **prepared.inputs, use_cache=False)
    expected = own_attentions(output)
    compared = 0
    for kept in found:
        layers = expected[kept.site.kind]
        if kept.site.layer < len(layers):  # an adapter's layer is reported by nobody
            torch.testing.assert_close(kept.weights, layers[kept.site.layer][:, :2], atol=1e-5, rtol=0)
            compared += 1
    assert compared == 6


@pytest.mark.parametrize("name", ["voxtral_realtime", "clap"])
def test_what_hears_in_a_way_that_is_not_known_is_not_said_to_be_deaf(tmp_path, tone, name):
    save(tmp_path, name)
    with pytest.raises(
        InputError, match="hears, but where a sound stands in its text, or beside it, is not known"
    ):
        load(str(tmp_path)).prepare_audio(tone, "the cat")


@pytest.mark.parametrize("name", ["seamless_m4t", "mimi", "audio-spectrogram-transformer"])
def test_what_does_not_say_how_long_a_frame_is_is_numbered_and_a_note_says_so(tmp_path, tone, name):
    """Mimi's feature extractor makes no mask, and refuses to be asked for one."""
    save(tmp_path, name)
    model = load(str(tmp_path))
    prepared = model.prepare_audio(tone)
    assert prepared.heard is None
    assert any("numbered, without times" in note for note in prepared.notes)
    assert not any("the end of the sound is not heard" in note for note in prepared.notes)
    assert maps(model, prepared)


def test_a_sound_that_a_feature_extractor_cuts_off_without_a_word_is_named(tmp_path):
    save(tmp_path, "audio-spectrogram-transformer")
    prepared = load(str(tmp_path)).prepare_audio(speech.sound(tmp_path / "long.wav", 15.0))
    assert any("the end of the sound is not heard" in note for note in prepared.notes)


@pytest.mark.parametrize("name", ["parakeet_encoder", "speech_to_text", "whisper"])
def test_a_spectrogram_is_as_loud_as_the_sound_whichever_way_it_lies(tmp_path, name):
    """Of a sound that is loud in its second half alone."""
    save(tmp_path, name)
    wave = 0.3 * np.random.default_rng(0).standard_normal(32000)
    wave[:16000] *= 0.001
    soundfile.write(tmp_path / "late.wav", wave, 16000)
    heard = load(str(tmp_path)).prepare_audio(tmp_path / "late.wav").heard
    loud = heard.bands[:, : heard.frames].mean(0)
    half = len(loud) // 2
    assert loud[half + 1 :].min() > loud[: half - 1].max()


def test_a_wave_with_a_channel_is_a_wave(tmp_path, tone):
    save(tmp_path, "xcodec")
    prepared = load(str(tmp_path)).prepare_audio(tone)
    assert [token.text for token in prepared.tokens] == [f"{0.02 * frame:.2f} s" for frame in range(100)]
    assert prepared.heard.bands.shape[1] == 100


@pytest.mark.parametrize(
    "name", ["wav2vec2-bert", "parakeet_ctc", "speecht5", "moonshine_streaming", "whisper"]
)
def test_the_model_is_given_what_its_processor_gives_it(tmp_path, name):
    """With its mask of padding, where it has one; and its output is that of transformers' own call."""
    save(tmp_path, name)
    kind = transformers.models.auto.processing_auto.PROCESSOR_MAPPING[
        type(transformers.AutoConfig.from_pretrained(tmp_path))
    ]
    if name == "moonshine_streaming" and not hasattr(kind, "audio_kwargs"):
        pytest.skip("this release of transformers says it within its call")
    path = speech.sound(tmp_path / "odd.wav", 1.987)
    samples, rate = soundfile.read(path, dtype="float32")
    model = load(str(tmp_path))
    prepared = model.prepare_audio(path)
    own = kind(transformers.AutoFeatureExtractor.from_pretrained(tmp_path), model.reader.tokenizer)
    given = dict(own(audio=samples, sampling_rate=rate, return_tensors="pt"))
    beside = {key: value for key, value in prepared.inputs.items() if key == "decoder_input_ids"}
    assert set(prepared.inputs) == {*given, *beside}
    with torch.inference_mode():
        expected = next(iter(model.module(**given, **beside).values()))
        found = next(iter(model.module(**prepared.inputs, **prepared.settings).values()))
    assert torch.equal(found, expected)
    silent = [token.special for token in prepared.tokens]
    assert silent.index(True) == 99 if name == "whisper" else sum(silent) <= 1


def test_a_step_of_several_stacked_ones_is_as_long_as_they_are():
    """As an extractor makes 100 steps of two seconds, in hops of a hundredth."""

    class Halving(torch.nn.Module):
        config = transformers.PretrainedConfig()

        def _get_subsampling_output_length(self, lengths):
            return lengths // 4

    class Extractor:
        hop_length, feature_size = 160, 8

    values, sound = torch.zeros(1, 100, 16), Sound(np.zeros(32000, np.float32), 16000)
    frames = find_frames("it", Halving(), values, 100, sound, Extractor())
    assert (frames.count, frames.heard, frames.seconds) == (25, 25, 0.08)
    Halving._get_subsampling_output_length = lambda self, lengths: lengths // 4 + 50
    assert find_frames("it", Halving(), values, 100, sound, Extractor()) is None


def test_a_sound_that_is_cut_into_pieces_ends_in_a_sentence(tmp_path):
    save(tmp_path, "cohere_asr")
    path = speech.sound(tmp_path / "long.wav", 40.0)
    with pytest.raises(InputError, match=r"into 2 pieces that it hears apart: choose a part"):
        load(str(tmp_path)).prepare_audio(path)


@pytest.mark.parametrize("generative", [False, True])
def test_what_joins_several_models_says_which_to_look_at(tmp_path, generative):
    """It reads and writes texts, so that it has no head was no answer."""
    config = {"model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    save_file({"thinker.model.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="joins several; save the one that reads in a folder"):
        load(str(tmp_path), generative=generative)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return folders.made_once(tmp_path_factory, hearing.save)


def moments(prepared):
    return {
        position: float(token.text.removesuffix(" s"))
        for position, token in enumerate(prepared.tokens)
        if token.text.endswith(" s")
    }


@pytest.mark.parametrize("maker", hearing.SECONDS, ids=lambda maker: maker.__name__)
def test_tokens_of_a_sound_are_named_by_their_time(folder_of, tone, maker):
    prepared = load(folder_of(maker)).prepare_audio(tone, "the cat")
    named, seconds = moments(prepared), hearing.SECONDS[maker]
    assert len(named) == (26 if maker is hearing.qwen3_asr else round(2.0 / seconds))
    for number, time in enumerate(named.values()):
        whole = number // 13 if maker is hearing.qwen3_asr else 0  # seconds, each cut up for itself
        assert time == pytest.approx(whole + (number - 13 * whole) * seconds)
    sign = prepared.inputs["input_ids"][0, next(iter(named))]
    standing = (prepared.inputs["input_ids"][0] == sign).nonzero()[:, 0].tolist()
    assert list(named) == standing
    assert prepared.lead == "decoder"
    assert not prepared.notes


@pytest.mark.slow
@pytest.mark.parametrize("maker", hearing.SECONDS, ids=lambda maker: maker.__name__)
def test_what_sounds_at_a_moment_moves_its_token_most(folder_of, tmp_path, maker):
    """Independent of how the times were found: whole passes over other sounds, attention and all."""
    model = load(folder_of(maker))
    random = np.random.default_rng(1)
    wave = 0.02 * random.standard_normal(32000)
    seen = {}
    for name, at in (("plain", None), ("early", 0.5), ("late", 1.5)):
        other = wave.copy()
        if at is not None:
            other[int(16000 * at) : int(16000 * (at + 0.02))] *= 0.05  # the loudest moment stays
        soundfile.write(tmp_path / f"{name}.wav", other, 16000)
        prepared = model.prepare_audio(tmp_path / f"{name}.wav", "the cat")
        states = []
        (language,) = (
            part
            for path, part in model.module.named_modules()
            if path.endswith("layers.0") and not any(other in path for other in ("audio", "encoder"))
        )
        handle = language.register_forward_pre_hook(
            lambda module, args, kwargs, states=states: states.append(
                (args or (kwargs["hidden_states"],))[0]
            ),
            with_kwargs=True,
        )
        model.run(prepared, [])
        handle.remove()
        seen[name] = states[0][0]
    times = np.array(list(moments(prepared).values()))
    positions = list(moments(prepared))
    for name, at in (("early", 0.5), ("late", 1.5)):
        moved = (seen[name] - seen["plain"]).norm(dim=-1)[positions]
        middle = times[int(moved.argmax())] + hearing.SECONDS[maker] / 2
        assert abs(middle - (at + 0.01)) < hearing.SECONDS[maker]


@pytest.mark.parametrize("maker", [hearing.qwen2_audio, hearing.glmasr], ids=lambda maker: maker.__name__)
def test_weights_are_the_eager_ones(folder_of, tone, maker):
    model = load(folder_of(maker))
    hearing.require_weights(model)
    prepared = model.prepare_audio(tone, "the cat")
    expected = folders.eager(folder_of(maker), **prepared.inputs, use_cache=False).attentions
    kept_maps = [kept for kept in folders.maps(model, prepared) if kept.site.kind == "decoder"]
    assert len(kept_maps) == len(expected) == 2
    for kept, weights in zip(kept_maps, expected, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)
        assert kept.keys == prepared.tokens


def test_a_processor_that_reads_sounds_in_chats_alone_is_done_without(folder_of, tone, tmp_path):
    model = load(folder_of(hearing.voxtral))
    hearing.require_weights(model)
    prepared = model.prepare_audio(tone, "the cat")
    named = moments(prepared)
    assert list(named.values()) == [round(0.08 * number, 2) for number in range(50)]  # four seconds, padded
    assert [prepared.tokens[position].special for position in named] == [number >= 25 for number in range(50)]
    assert any("50 tokens stand for it" in note for note in prepared.notes)
    expected = folders.eager(folder_of(hearing.voxtral), **prepared.inputs, use_cache=False).attentions
    kept_maps = [kept for kept in folders.maps(model, prepared) if kept.site.kind == "decoder"]
    for kept, weights in zip(kept_maps, expected, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-5, rtol=0)
    with pytest.raises(InputError, match="at most 4 seconds in a text"):
        model.prepare_audio(speech.sound(tmp_path / "long.wav", 5.0), "the cat")


def test_tokens_of_seconds_that_are_cut_up_each_for_itself_do_not_drift(folder_of, tmp_path):
    """Thirteen in a second of a hundred steps, by stacked halvings: the last has half of the steps."""
    prepared = load(folder_of(hearing.qwen3_asr)).prepare_audio(
        speech.sound(tmp_path / "long.wav", 25.3), "the cat"
    )
    times = list(moments(prepared).values())
    assert times[:14] == [round(0.08 * number, 2) for number in range(13)] + [1.0]
    assert times[13 * 25 :] == [25.0, 25.08, 25.16, 25.24]
    assert len(times) == 13 * 25 + 4


@pytest.mark.parametrize("maker", [hearing.qwen2_audio, hearing.qwen3_asr], ids=lambda maker: maker.__name__)
def test_the_shortest_sound_has_its_tokens_too(folder_of, tmp_path, maker):
    prepared = load(folder_of(maker)).prepare_audio(speech.sound(tmp_path / "short.wav", 0.06), "the cat")
    assert next(iter(moments(prepared).values())) == 0
    assert prepared.heard.frames == 1


def test_a_part_of_a_sound_keeps_the_times_of_its_file(folder_of, tmp_path):
    path = speech.sound(tmp_path / "long.wav", 3.0)
    prepared = load(folder_of(hearing.qwen2_audio)).prepare_audio(path, "the cat", SoundPart(1.0, 2.0))
    times = list(moments(prepared).values())
    assert (times[0], times[-1], len(times)) == (1.0, 1.96, 25)


def test_what_does_not_go_together_is_told_so(folder_of, tone, tmp_path):
    with pytest.raises(InputError, match="reads a text beside the sound"):
        load(folder_of(hearing.qwen2_audio)).prepare_audio(tone)
    with pytest.raises(InputError, match="does not take sound"):
        load(folders.gpt2(tmp_path)).prepare_audio(tone)
