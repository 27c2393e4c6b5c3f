"""Letters of CTC heads, in the names of frames and as words with times, against transformers' own."""

import itertools

import numpy as np
import pytest
import torch
import transformers

from attnscope.attention import Token
from attnscope.axes import SOUND_ID, join_places, places
from attnscope.comparison import most_likely_states
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.models.inputs import SoundPart
from attnscope.questions.align import align_letters
from tests.models import speech

SHAKEN = 15  # models of random numbers


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    return speech.noise(tmp_path_factory.mktemp("sounds") / "noise.wav")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return speech.ctc(tmp_path_factory.mktemp("ctc"))


def frame(seconds):
    return round(seconds / 0.02)


@pytest.mark.parametrize("name", [*speech.ENCODERS, "sew"])
def test_frames_have_the_letters_of_the_ctc_head(tmp_path, noise, name):
    folder, width = speech.ctc(tmp_path, name), 2 if name == "sew" else 1  # which joins two frames
    prepared = load(folder).prepare_audio(noise)
    own = transformers.AutoModelForCTC.from_pretrained(folder).eval()
    with torch.inference_mode():
        ids = own(**speech.extract(folder, noise)).logits[0].argmax(-1).tolist()
    assert len(set(ids)) > 1
    for number, token in enumerate(prepared.tokens):
        read = [id_ for id_, _ in itertools.groupby(ids[width * number :][:width]) if id_ != 0]
        letters = "".join(speech.VOCABULARY[id_] for id_ in read)
        assert token.text == f"{0.02 * width * number:.2f} s" + (f" · {letters}" if letters else "")
    assert len(ids) == width * len(prepared.tokens)
    assert prepared.axes["encoder"] == (prepared.tokens, prepared.tokens)
    assert not prepared.notes


@pytest.mark.slow
def test_ctc_words_and_offsets_equal_transformers(folder, noise):
    """The words and offsets are what its tokenizer says of its own argmax."""
    model = load(folder, generative=True)
    own = transformers.AutoModelForCTC.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    several = 0
    for seed in range(SHAKEN):
        torch.manual_seed(seed)
        for mine, other in zip(model.writer.parameters(), own.parameters(), strict=True):
            if mine.ndim > 1:
                torch.nn.init.normal_(mine, std=0.3)
            other.data.copy_(mine.data)
        prepared = model.prepare_audio(noise)
        with torch.inference_mode():
            ids = own(**prepared.inputs).logits[0].argmax(-1)
        expected = tokenizer.decode(ids, output_word_offsets=True, output_char_offsets=True)
        if not expected.word_offsets:
            with pytest.raises(InputError, match="hears no speech"):
                align_letters(model, prepared)
            continue
        found = align_letters(model, prepared)
        words = [(word["word"], word["start_offset"], word["end_offset"]) for word in expected.word_offsets]
        assert [(word.text, frame(word.begin), frame(word.end)) for word in found.words] == words
        letters = [letter["start_offset"] for letter in expected.char_offsets]
        assert [frame(said.begin) for said in found.tokens] == letters
        several += len(words) > 1
    assert several > SHAKEN / 2


def test_sound_part_keeps_the_times_of_its_file(folder, noise):
    model = load(folder)
    found = align_letters(model, model.prepare_audio(noise, part=SoundPart(1.0, 2.0)))
    assert found.begin == 1.0
    assert all(1.0 <= word.begin < word.end <= 2.0 for word in found.words)


def test_joined_frames_merge_their_letters():
    names = ("0.00 s · l", "0.02 s · l", "0.04 s", "0.06 s · l", "0.08 s · |", "0.10 s", "0.12 s")
    axis = places(tuple(Token(name, SOUND_ID + at) for at, name in enumerate(names)))
    joined = join_places(axis[:-1], pooled=True)
    assert joined.text == "0.00–0.10 s · ll|"
    assert (joined.moment, axis[0].moment, axis[0].letters) == ("0.00 s", "0.00 s", "l")
    assert join_places(axis[:2], pooled=True).text == "0.00–0.02 s · l"
    assert join_places([joined, axis[-1]], pooled=True).text == "0.00–0.12 s · ll|"


def test_frames_without_vocabulary_have_times_and_a_note(tmp_path, noise):
    prepared = load(speech.encoder(tmp_path, "wav2vec2")).prepare_audio(noise)
    assert prepared.tokens[1].text == "0.02 s"
    assert prepared.notes == ("no letters: the CTC head has no vocabulary here",)


def ways(frames, ids, blank):
    """Every way of CTC through some letters, letter by letter and frame by frame."""
    for way in itertools.product(range(-1, len(ids)), repeat=frames):  # -1: a blank
        said = [state for state, _ in itertools.groupby(way) if state >= 0]
        letters = [blank if state < 0 else ids[state] for state in way]
        read = [id_ for id_, _ in itertools.groupby(letters) if id_ != blank]
        if said == list(range(len(ids))) and read == list(ids):
            yield [2 * state + 1 if state >= 0 else -1 for state in way], letters


@pytest.mark.parametrize("ids", [(1,), (1, 2), (1, 1), (2, 1, 1), (1, 2, 1)])
@pytest.mark.parametrize("frames", range(2, 7))
def test_ctc_alignment_is_the_best_of_all_paths(ids, frames):
    scores = np.log(np.random.default_rng(frames).dirichlet(np.ones(3), frames))
    found = most_likely_states(scores, ids, 0)
    every = {sum(scores[at, id_] for at, id_ in enumerate(way[1])): way[0] for way in ways(frames, ids, 0)}
    best = every[max(every)] if every else None
    assert best == (None if found is None else [state if state % 2 else -1 for state in found])


def test_ctc_alignment_of_text_keeps_word_order(folder, noise):
    model = load(folder)
    prepared = model.prepare_audio(noise)
    found = align_letters(model, prepared, "ah, ha aha.")
    assert [word.text for word in found.words] == ["ah", "ha", "aha"]
    assert all(0 <= word.confidence <= 1 for word in found.words)
    shares = np.exp(prepared.sound.letters.scores)
    for one in found.tokens:
        share = shares[frame(one.begin) : frame(one.end), one.token.id].mean()
        assert one.confidence == pytest.approx(share, rel=1e-5)
    assert all(one.end <= later.begin for one, later in itertools.pairwise(found.tokens))
    with pytest.raises(InputError, match="do not fit into the"):
        align_letters(model, prepared, "aha" * 100)
