"""A sound in a text on the command line."""

import json

import pytest

from attnscope.capture import Keep
from attnscope.models import load
from tests.models import hearing, speech


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    sound = speech.sound(folder / "tone.wav", 2.0)
    return "--audio", sound, "-m", hearing.save(folder / "model", hearing.qwen2_audio)


def test_a_word_looks_at_moments(run, given):
    seen = json.loads(
        run("show", "what is the cat", *given, "--head", "L1H0", "--token", "cat", "--json").out
    )
    assert all(key["text"].endswith(" s") for key in seen["looks_at"][:3])


def test_heads_that_listen_are_found(run, given):
    hearing.require_weights(load(given[-1]))
    found = json.loads(run("find", "cat -> sound", "--text", "what is the cat", *given, "--json").out)
    heads = found["questions"][0]["heads"]
    listening = {(head["layer"], head["head"]): head["weight"] for head in heads if head["kind"] == "decoder"}
    model, keep = load(given[-1]), Keep(lambda site: range(2) if site.kind == "decoder" else None)
    prepared = model.prepare_audio(given[1], "what is the cat")
    model.run(prepared, [keep])
    sounds = [place for place, token in enumerate(prepared.tokens) if token.text.endswith(" s")]
    assert len(sounds) == 50
    expected = {
        (layer, head): kept.weights[0, head, -1, sounds].sum().item()
        for layer, kept in enumerate(keep.maps)
        for head in range(2)
    }
    assert listening == pytest.approx(expected, abs=1e-5)


def test_sound_and_text_are_parts(run, given):
    ran = run("spans", "what is the cat", *given, "--by", "modality")
    assert ran.code == 0
    assert "sound" in ran.out
    assert "text" in ran.out


def test_what_is_written_of_a_sound_is_shown(run, given):
    ran = run("show", "what is the cat", *given, "--generate", "3", "--head", "L1H0")
    assert ran.code == 0
    assert "generated 3 tokens" in ran.out
