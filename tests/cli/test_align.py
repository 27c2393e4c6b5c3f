"""``attnscope align`` as a user meets it."""

import json
import re

import pytest

from attnscope.questions.align import SpokenText, SpokenWord, write_srt, write_textgrid
from tests.models import speech

TEXT = "The cat sat on the mat."


@pytest.fixture
def answer(run, whisper, tone):
    return run.json("align", tone, TEXT, "-m", whisper)


def test_each_word_has_a_line_with_its_times(run, whisper, tone, answer):
    ran = run("align", tone, TEXT, "-m", whisper)
    assert (ran.code, ran.err) == (0, "")
    assert "6 words in 1.30 seconds" in ran.out
    assert "by the alignment heads that the model names: L0H1, L1H0" in ran.out
    lines = re.findall(r"^ +(\d+\.\d\d) +(\d+\.\d\d) +\d+% +(\S+)", ran.out, re.M)
    assert [line[2] for line in lines] == TEXT.split()
    assert [line[:2] for line in lines] == [
        (f"{word['begin']:.2f}", f"{word['end']:.2f}") for word in answer["words"]
    ]


def test_the_map_and_its_path_are_saved_as_a_picture(run, whisper, tone, answer, tmp_path):
    ran = run("align", tone, TEXT, "-m", whisper, "-o", tmp_path / "map.svg")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.endswith(f"saved {tmp_path / 'map.svg'}\n")
    drawn = (tmp_path / "map.svg").read_text("utf-8")
    labels = [text.replace("\u200e", "").strip() for text in re.findall(r"<!-- (.*?) -->", drawn)]
    assert {token["text"].strip() or "␣" for token in answer["tokens"]} <= {*labels}


def test_subtitles_are_numbered_and_timed(run, whisper, tone, answer):
    out = run("align", tone, TEXT, "-m", whisper, "--format", "srt").out
    blocks = [block.splitlines() for block in out.strip().split("\n\n")]
    assert [block[0] for block in blocks] == ["1", "2", "3", "4", "5", "6"]
    assert [block[2] for block in blocks] == TEXT.split()
    for block, word in zip(blocks, answer["words"], strict=True):
        times = re.fullmatch(r"00:00:(\d\d),(\d{3}) --> 00:00:(\d\d),(\d{3})", block[1])
        begin, end = (float(f"{times[one]}.{times[one + 1]}") for one in (1, 3))
        assert [begin, end] == [word["begin"], word["end"]]


def test_subtitles_count_hours_and_letters_of_any_script():
    words = (SpokenWord("\"it's", 0.0, 0.5), SpokenWord("猫", 61.25, 3661.5))
    out = write_srt(SpokenText((), words, (), "", "", 0.0, 3662.0, ()))
    assert out.split("\n\n") == [
        "1\n00:00:00,000 --> 00:00:00,500\n\"it's",
        "2\n00:01:01,250 --> 01:01:01,500\n猫\n",
    ]


def test_a_textgrid_holds_a_word_in_the_last_frame_and_late_times_exactly():
    words = (SpokenWord("late", 1234.567, 1300.02),)
    out = write_textgrid(SpokenText((), words, (), "", "", 0.0, 1300.0, ()))
    assert re.findall(r"xmax = (\S+)", out) == ["1300.02", "1300.02", "1234.567", "1300.02"]


def test_a_textgrid_fills_the_whole_sound_and_leaves_no_word_out(run, whisper, tone):
    out = run("align", tone, TEXT, "-m", whisper, "--format", "textgrid").out
    assert out.startswith('File type = "ooTextFile"\nObject class = "TextGrid"\n')
    begins, ends = (
        [float(one) for one in re.findall(rf"^ {{12}}{name} = (\S+)", out, re.M)] for name in ("xmin", "xmax")
    )
    assert begins[0] == 0
    assert ends[-1] == 1.3
    assert begins[1:] == ends[:-1]
    assert all(begin < end for begin, end in zip(begins, ends, strict=True))
    assert " ".join(re.findall(r'^ {12}text = "(.+)"', out, re.M)) == TEXT
    assert f"size = {len(begins)}" in out


@pytest.mark.slow
def test_a_long_sound_is_heard_window_after_window_and_its_times_go_on(run, whisper, tmp_path):
    long = speech.sound(tmp_path / "long.wav", 7.0)
    ran = run("align", long, "-m", whisper, "--generate", "9")
    assert ran.code == 0
    assert "in 7.00 seconds" in ran.out
    whole = run.json("align", long, "-m", whisper, "--generate", "9")
    times = [word["begin"] for word in whole["words"]]
    assert times == sorted(times)
    assert times[-1] > 5
    begin, words = 0.0, []
    while begin < 7:  # the same by hand, a window at a time
        stop = min(begin + speech.SECONDS, 7.0)
        cut = "--from-second", str(begin), "--to-second", str(stop)
        part = run.json("align", long, "-m", whisper, "--generate", "9", *cut)
        assert (part["begin"], part["seconds"]) == pytest.approx((begin, stop), abs=0.02)
        last = part["words"][-1]["begin"]
        following = last if stop < 7 and last > begin + speech.SECONDS / 2 else stop
        words += [word for word in part["words"] if following == stop or word["begin"] < following]
        begin = following
    assert words == whole["words"]
    assert any("seconds at once, in " in note for note in whole["notes"])
    assert f"the model wrote {len(whole['tokens'])} tokens" in whole["notes"]
    assert not any(note.startswith("generated") for note in whole["notes"])
    drawn = run("align", long, "-m", whisper, "--generate", "9", "-o", tmp_path / "long.png")
    assert "of a long sound one part has one" in drawn.err
    assert not (tmp_path / "long.png").exists()


def test_a_part_of_a_sound_keeps_the_times_of_its_file(run, whisper, tmp_path):
    import soundfile

    long = speech.sound(tmp_path / "long.wav", 3.0)
    samples, rate = soundfile.read(long)
    soundfile.write(tmp_path / "part.wav", samples[rate : 2 * rate], rate)
    cut = "--from-second", "1", "--to-second", "2"
    part = run.json("align", long, TEXT, "-m", whisper, *cut)
    alone = run.json("align", tmp_path / "part.wav", TEXT, "-m", whisper)
    for one, other in zip(part["words"], alone["words"], strict=True):
        assert one["text"] == other["text"]
        assert (one["begin"], one["end"]) == pytest.approx((other["begin"] + 1, other["end"] + 1))
    shown = run("show", TEXT, "--audio", long, "-m", whisper, "--head", "cross L0H0", "--token", "cat",
                "--json", *cut)  # fmt: skip
    assert all(1 <= float(key["text"].removesuffix(" s")) <= 3 for key in json.loads(shown.out)["looks_at"])
