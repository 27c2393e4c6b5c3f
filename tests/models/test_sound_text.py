"""Sound in language models: which moment each token stands for, and that attention stays theirs."""

import numpy as np
import pytest
import soundfile
import torch

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.models.inputs import SoundPart
from tests.models import folders, hearing, speech


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return folders.made_once(tmp_path_factory, hearing.save)


@pytest.fixture(scope="module")
def tone(tmp_path_factory):
    return speech.sound(tmp_path_factory.mktemp("sounds") / "tone.wav", 2.0)


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
