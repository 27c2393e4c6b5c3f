"""Which heads find when words are said, against a plain computation on transformers' own attention."""

import json

import numpy as np
import pytest
import torch
import transformers

from attnscope.analysis.gold.timed import find_times
from attnscope.analysis.questions.align import align_words
from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.storage.gold import read_gold
from tests.models import speech

TEXTS = (
    [("The", 0.1, 0.3), ("cat", 0.3, 0.52), ("sat.", 0.7, 1.1)],
    [("It", 0.0, 0.2), ("was", 0.25, 0.41), ("tired,", 0.5, 0.9), ("New York", 1.0, 1.4)],
    [("on", 0.2, 0.6), ("the", 0.6, 0.63), ("mat", 0.8, 1.21)],
    [("words", 0.3, 0.5), ("look", 0.55, 0.8), ("back", 0.9, 1.0)],
)
SECONDS = (1.3, 1.7, 1.5, 1.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return speech.whisper(tmp_path_factory.mktemp("whisper"), seed=3)


@pytest.fixture(scope="module")
def gold(tmp_path_factory):
    return timed_sounds(tmp_path_factory.mktemp("gold"))


def timed_sounds(folder):
    """Sounds, and a file with the times of the words in them."""
    with (folder / "timed.jsonl").open("w") as file:
        for number, (words, seconds) in enumerate(zip(TEXTS, SECONDS, strict=True)):
            speech.sound(folder / f"{number}.wav", seconds)
            file.write(json.dumps({"audio": f"{number}.wav", "words": words}) + "\n")
    return folder / "timed.jsonl"


@pytest.fixture(scope="module")
def plain(folder, gold):
    """For each sound and head: each word's strongest moment, weight, and the frames of its rows."""
    model = transformers.WhisperForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    words_of = transformers.AutoTokenizer.from_pretrained(folder)
    start = load(folder, generative=True).prepare_audio(gold.parent / "0.wav").inputs["decoder_input_ids"]
    found = []
    for number, (words, seconds) in enumerate(zip(TEXTS, SECONDS, strict=True)):
        import soundfile

        wave, rate = soundfile.read(gold.parent / f"{number}.wav", dtype="float32")
        heard = extractor(wave, sampling_rate=rate, return_tensors="pt").input_features
        pieces = [words_of(f" {text}", add_special_tokens=False).input_ids for text, _, _ in words]
        ids = torch.tensor([start[0].tolist() + [id_ for piece in pieces for id_ in piece]])
        with torch.inference_mode():
            across = model(heard, decoder_input_ids=ids, output_attentions=True).cross_attentions
        rows = torch.cat(across).flatten(0, 1).numpy()[:, start.shape[1] - 1 :]  # [head, row, frame]
        edges = np.cumsum([0, *map(len, pieces)])
        found.append((rows, edges, words, seconds))
    return found


def figures(plain, head, numbers):
    """Accuracy, weight and baseline of a head on some sounds, and the accuracy's standard error."""
    right, weight, even = [], [], []
    for number in numbers:
        rows, edges, words, seconds = plain[number]
        frames = int(seconds * 50)
        mine = ([], [], [])
        for (_, begin, end), first, last in zip(words, edges[:-1], edges[1:], strict=True):
            look = rows[head, first:last, :frames].mean(0)
            inside = [
                f for f in range(frames) if 20 * f < round(1000 * end) and 20 * (f + 1) > round(1000 * begin)
            ]
            mine[0].append(int(look.argmax()) in inside)
            mine[1].append(look[inside].sum())
            mine[2].append(len(inside) / 100)
        for all_, one in zip((right, weight, even), mine, strict=True):
            all_.append(one)
    counts = np.array([len(one) for one in right])
    sums = np.array([sum(one) for one in right])
    mean = sums.sum() / counts.sum()
    error = np.sqrt(((sums - mean * counts) ** 2).sum() * len(counts) / (len(counts) - 1)) / counts.sum()
    return mean, np.concatenate(weight).mean(), np.concatenate(even).mean(), error


@pytest.mark.parametrize("held_out", [False, True])
def test_figures_are_those_of_a_plain_computation(folder, gold, plain, held_out):
    seen = find_times(load(folder, generative=True), read_gold(gold), held_out=held_out)
    scored, chosen = ((1, 3), (0, 2)) if held_out else ((0, 1, 2, 3),) * 2
    assert {each.head for each in seen.heads} == {
        Head(layer, head, "cross") for layer in (0, 1) for head in (0, 1)
    }
    for each in seen.heads:
        right, weight, even, error = figures(plain, 2 * each.head.layer + each.head.head, scored)
        assert each.accuracy == pytest.approx(right)
        assert each.weight == pytest.approx(weight, abs=1e-5)
        assert each.baseline == pytest.approx(even)
        assert each.accuracy_error == pytest.approx(error)
        assert each.chosen == pytest.approx(figures(plain, 2 * each.head.layer + each.head.head, chosen)[0])
        assert each.words == sum(len(TEXTS[number]) for number in scored)
    better = {each.head for each in seen.heads if each.chosen - each.accuracy_error > seen.fixed}
    assert set(seen.picked) == better
    assert [each.chosen for each in seen.heads] == sorted((each.chosen for each in seen.heads), reverse=True)


@pytest.mark.slow
def test_seconds_are_those_of_align_with_one_head(folder, gold):
    model = load(folder, generative=True)
    seen = find_times(model, read_gold(gold))
    for each in seen.heads:
        off = []
        for number, words in enumerate(TEXTS):
            text = " ".join(word for word, _, _ in words)
            prepared = model.prepare_audio(gold.parent / f"{number}.wav", text)
            said = align_words(model, prepared, [each.head]).words
            begins = {text.index(one.text): (one.begin, one.end) for one in said}
            for word, begin, end in words:
                pieces = [begins[text.index(piece)] for piece in word.split()]
                off.append((abs(pieces[0][0] - begin) + abs(pieces[-1][1] - end)) / 2)
        assert each.off == pytest.approx(np.mean(off), abs=1e-6)


def test_the_line_is_the_better_of_two_least_squares(folder, gold, plain):
    seen = find_times(load(folder, generative=True), read_gold(gold))
    times = np.array([word[1:] for words in TEXTS for word in words])
    scores = []
    for paced in (False, True):
        edges = np.concatenate(
            [
                np.stack([edges[:-1], edges[1:]], 1) * (seconds / rows.shape[1] if paced else 1)
                for rows, edges, _, seconds in plain
            ]
        )
        system = np.stack([edges.ravel(), np.ones(edges.size)], 1)
        (slope, shift), *_ = np.linalg.lstsq(system, times.ravel(), rcond=None)
        found = slope * edges + shift
        middle = found.mean(1)
        scores.append(
            (((times[:, 0] <= middle) & (middle < times[:, 1])).mean(), np.abs(found - times).mean())
        )
    best = max(scores, key=lambda score: score[0])
    assert (seen.fixed, seen.fixed_off) == pytest.approx(best, abs=1e-6)


def test_what_cannot_be_asked_ends_in_a_sentence(folder, gold, tmp_path):
    hears = load(folder, generative=True)
    for line, sentence in (
        ('{"audio": "a.wav"}', "write {"),
        ('{"audio": 3, "words": [["a", 0, 1]]}', "the path of its sound is missing"),
        ('{"audio": "none.wav", "words": [["a", 0, 1]]}', "no such file"),
        ('{"audio": "a.wav", "words": []}', "it has 0 words"),
        ('{"audio": "a.wav", "words": [["a", 1, 0.5]]}', "ends before it begins"),
        ('{"audio": "a.wav", "words": [["a", 0, Infinity]]}', "are no numbers"),
        ('{"audio": "a.wav", "words": [["a", 1, 2], ["b", 0, 1]]}', "begins before the word in front"),
    ):
        (tmp_path / "one.jsonl").write_text(line + "\n")
        with pytest.raises(InputError, match="line 1") as told:
            find_times(hears, read_gold(tmp_path / "one.jsonl"), strict=True)
        assert sentence in str(told.value)
    with pytest.raises(InputError, match="holds no timed word"):
        find_times(hears, read_gold(tmp_path / "one.jsonl"))
    encoder = load(speech.encoder(tmp_path / "encoder", "hubert"))
    with pytest.raises(InputError, match="reads no text"):
        find_times(encoder, read_gold(gold), strict=True)
