"""What a CTC head reads, as a user meets it."""

import json
import re

import pytest

from attnscope.models import load
from tests.models import speech


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    return speech.noise(tmp_path_factory.mktemp("sounds") / "noise.wav")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return speech.ctc(tmp_path_factory.mktemp("ctc"))


def test_a_letter_and_a_moment_both_name_a_frame(run, folder, noise):
    texts = [token.text for token in load(folder).prepare_audio(noise).tokens]
    lettered = [number for number, text in enumerate(texts) if re.search(r" · [a-z]$", text)]
    if not lettered:  # random weights are others in each release
        pytest.skip("the random weights read no letter")
    at = lettered[0]
    time, letter = texts[at].split(" · ")
    for name in (texts[at], time, letter):
        ran = run("show", "--audio", noise, "-m", folder, "--token", name, "--head", "L0H1")
        assert f"{texts[at]} (token {at}) looks at" in ran.out
    assert run("find", f"{letter} -> sound", "--audio", noise, "-m", folder).code == 0


def test_align_prints_what_the_letters_say(run, folder, noise):
    ran = run("align", noise, "-m", folder)
    assert (ran.code, ran.err) == (0, "")
    assert "by the letters of the CTC head, frame by frame" in ran.out
    answer = json.loads(run("align", noise, "-m", folder, "--json").out)
    assert answer["heads"] == []
    assert " --> " in run("align", noise, "-m", folder, "--format", "srt").out
    assert "aligns no words by its heads" in run("align", noise, "-m", folder, "--rank").err


def test_align_finds_a_given_text_and_says_how_sure_it_is(run, folder, noise):
    ran = run("align", noise, "ah ha", "-m", folder)
    assert (ran.code, ran.err) == (0, "")
    assert re.findall(r"% +(\w+)", ran.out) == ["ah", "ha"]
    assert "the most likely path of the CTC head through the letters of the text" in ran.out
    assert "no letters for 'xyz'" in run("align", noise, "xyz", "-m", folder).err
