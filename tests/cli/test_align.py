"""``attnscope align`` from the command line."""

import html
import re

import pytest

from attnscope.questions.align import WRITERS, SpokenText, SpokenWord, write_srt, write_textgrid
from tests.models import speech

TEXT = "The cat sat on the mat."


@pytest.fixture
def asked(whisper, tone):
    return "align", tone, TEXT, "-m", whisper


def test_align_prints_a_line_with_times_per_word(run, asked):
    ran = run(*asked)
    assert (ran.code, ran.err) == (0, "")
    assert "6 words in 1.30 seconds" in ran.out
    assert "by the model's alignment heads: L0H1, L1H0" in ran.out
    lines = re.findall(r"^ +(\d+\.\d\d) +(\d+\.\d\d) +\d+% +(\S+)", ran.out, re.M)
    words = [
        (f"{word['begin']:.2f}", f"{word['end']:.2f}", word["text"]) for word in run.json(*asked)["words"]
    ]
    assert lines == words
    assert [text for *_, text in lines] == TEXT.split()


def test_align_saves_map_with_path(run, asked, tmp_path):
    ran = run(*asked, "-o", tmp_path / "map.svg")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.endswith(f"saved {tmp_path / 'map.svg'}\n")
    drawn = (tmp_path / "map.svg").read_text("utf-8")
    texts = re.findall(r"<(?:text|tspan)\b[^>]*>([^<]*)<", drawn)
    labels = [html.unescape(text).replace("\u200e", "").strip() for text in texts]
    assert {token["text"].strip() or "␣" for token in run.json(*asked)["tokens"]} <= {*labels}


def spoken(words, seconds):
    return SpokenText((), tuple(SpokenWord(*word) for word in words), (), "", "", 0.0, seconds, ())


@pytest.mark.parametrize("format", WRITERS)
def test_align_formats_hold_the_words_of_the_json(run, asked, format):
    answer = run.json(*asked)
    words = [(word["text"], word["begin"], word["end"]) for word in answer["words"]]
    assert run(*asked, "--format", format).out == WRITERS[format](spoken(words, answer["seconds"]))


def test_srt_numbers_subtitles_and_counts_hours():
    out = write_srt(spoken([("\"it's", 0.0, 0.5), ("猫", 61.25, 3661.5)], 3662.0))
    assert out.split("\n\n") == [
        "1\n00:00:00,000 --> 00:00:00,500\n\"it's",
        "2\n00:01:01,250 --> 01:01:01,500\n猫\n",
    ]


@pytest.mark.parametrize(
    ("words", "seconds", "edges"),
    [
        ([("a", 0.2, 0.5), ("b", 0.5, 0.5), ("c", 0.6, 0.8), ("d", 1.3, 1.3)], 1.3, "0 0.2 0.5 0.6 0.8 1.3"),
        ([("late", 1234.567, 1300.02)], 1300.0, "0 1234.567 1300.02"),  # in the last frame
    ],
)
def test_textgrid_covers_whole_sound_and_every_word(words, seconds, edges):
    out, edges = write_textgrid(spoken(words, seconds)), edges.split()
    assert out.startswith('File type = "ooTextFile"\nObject class = "TextGrid"\n')
    begins, ends = (re.findall(rf"^ {{12}}{name} = (\S+)", out, re.M) for name in ("xmin", "xmax"))
    assert (begins, ends) == (edges[:-1], edges[1:])
    assert out.count(f"xmax = {edges[-1]}\n") == 3
    assert " ".join(re.findall(r'^ {12}text = "(.+)"', out, re.M)) == " ".join(word for word, *_ in words)
    assert f"size = {len(begins)}" in out


@pytest.mark.nightly
@pytest.mark.slow
def test_long_sound_is_aligned_in_consecutive_windows(run, whisper, tmp_path):
    long = speech.sound(tmp_path / "long.wav", 7.0)
    asked = ("align", long, "-m", whisper, "--generate", "9")
    assert "in 7.00 seconds" in run(*asked).out
    whole = run.json(*asked)
    begin, words = 0.0, []
    while begin < 7:  # the same by hand, a window at a time
        stop = min(begin + speech.SECONDS, 7.0)
        cut = "--from-second", str(begin), "--to-second", str(stop)
        part = run.json(*asked, *cut)
        assert (part["begin"], part["seconds"]) == pytest.approx((begin, stop), abs=0.02)
        last = part["words"][-1]["begin"]
        following = last if stop < 7 and last > begin + speech.SECONDS / 2 else stop
        words += [word for word in part["words"] if following == stop or word["begin"] < following]
        begin = following
    assert words == whole["words"]
    times = [word["begin"] for word in words]
    assert times == sorted(times)
    assert times[-1] > 5
    assert any(" windows of " in note for note in whole["notes"])
    assert f"the model wrote {len(whole['tokens'])} tokens" in whole["notes"]
    assert not any(note.startswith("generated") for note in whole["notes"])
    drawn = run(*asked, "-o", tmp_path / "long.png")
    assert "of a long sound one part has one" in drawn.err
    assert not (tmp_path / "long.png").exists()
