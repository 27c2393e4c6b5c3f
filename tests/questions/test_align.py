"""Times of words, against transformers' own token timestamps."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
import transformers
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from attnscope.attention import Head, Token
from attnscope.errors import InputError, SelectionError
from attnscope.models import load
from attnscope.models.text.tokens import Vocabulary
from attnscope.questions.align import SpokenToken, align_words, join_words, rank_heads, read_times
from attnscope.render.image import drawing
from tests.models import speech

LONG = "The cat sat on the mat, it was tired."
HEADS = ((0, 1), (1, 0))


@pytest.fixture(scope="module")
def tone(tmp_path_factory):
    return speech.sound(tmp_path_factory.mktemp("sounds") / "tone.wav", 1.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return speech.whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def model(folder):
    return load(folder, generative=True)


def said(prepared, ids, spell):
    """The same sound with other tokens said."""
    tokens = tuple(
        Token(text, id_, special=number < 4)
        for number, (id_, text) in enumerate(zip(ids, spell(ids), strict=True))
    )
    inputs = dict(prepared.inputs) | {"decoder_input_ids": torch.tensor([ids])}
    axes = dict(prepared.axes) | {"decoder": (tokens, tokens), "cross": (tokens, prepared.axes["cross"][1])}
    return replace(prepared, inputs=inputs, axes=axes)


@pytest.mark.slow
def test_align_times_equal_transformers_frame_by_frame(folder, tone, monkeypatch, request):
    model = load(folder, generative=True)
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    original, calls = WhisperGenerationMixin._extract_token_timestamps, []

    def watch(self, outputs, heads, **named):
        calls.append((outputs, heads, named))
        return original(self, outputs, heads, **named)

    monkeypatch.setattr(WhisperGenerationMixin, "_extract_token_timestamps", watch)
    prepared = model.prepare_audio(tone)
    asked, ends = {"language": "en", "task": "transcribe", "max_new_tokens": 24}, set()
    asked["attention_mask"] = (torch.arange(200) < 130).long()[None]
    asked |= dict.fromkeys(("return_token_timestamps", "return_dict_in_generate"), True)
    for seed in range(50 if request.config.getoption("whole") else 6):
        torch.manual_seed(seed)
        for name, weights in theirs.named_parameters():
            if "norm" not in name:
                torch.nn.init.normal_(weights, std=0.5)  # large enough for attention to have peaks
        model.writer.load_state_dict(theirs.state_dict())
        theirs.eval().generate(prepared.inputs["input_features"], **asked)
        outputs, heads, named = calls[-1]
        assert named["num_input_ids"] == 4
        ids = outputs.sequences[0].tolist()[:-1]  # the last one was never read
        again = said(prepared, ids, model.reader.vocabulary.spell)
        # the command begins a row before, at the last token that it starts with, to find the first word too
        expected = original(theirs, outputs, heads, num_frames=named["num_frames"], num_input_ids=3)
        seen = align_words(model, again)
        found = [round(one.end / 0.02) for one in seen.tokens]
        assert found == (expected[0, 4:-1] / 0.02).round().long().tolist()
        assert [one.begin for one in seen.tokens][1:] == [one.end for one in seen.tokens][:-1]
        assert seen.heads == tuple(Head(*head) for head in HEADS)
        ends |= set(found)
    assert len(ends) > 10  # no two seeds say the same


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A folder whose head L1H1 looks 2.5 frames further at each position; others look anywhere."""
    folder = tmp_path_factory.mktemp("planted")
    speech.whisper(folder, alignment_heads=None)
    whole = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    torch.manual_seed(1)
    encoder, decoder = whole.model.encoder, whole.model.decoder
    with torch.no_grad():
        for name, weights in whole.named_parameters():
            weights.fill_("norm" in name and name.endswith("weight"))
        for layer in decoder.layers:
            torch.nn.init.normal_(layer.encoder_attn.q_proj.weight)
            torch.nn.init.normal_(layer.encoder_attn.k_proj.weight)
        for table, turn in ((encoder.embed_positions, 0.015), (decoder.embed_positions, 0.0375)):
            angle = turn * torch.arange(len(table.weight))
            table.weight[:, :4] = torch.stack([angle.cos(), -angle.cos(), angle.sin(), -angle.sin()], 1)
        for projection in (decoder.layers[1].encoder_attn.q_proj, decoder.layers[1].encoder_attn.k_proj):
            projection.weight[16:] = 0
            projection.weight[16, 0] = projection.weight[17, 2] = 20.0
    whole.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def heard(planted, tmp_path_factory):
    """The planted model, and a sound of two seconds with its transcript."""
    model = load(planted, generative=True)
    return model, model.prepare_audio(speech.sound(tmp_path_factory.mktemp("two") / "a.wav", 2.0), LONG)


def test_planted_monotone_head_ranks_first_and_aligns_tokens(heard):
    seen = align_words(*heard, [Head(1, 1)])
    ranked = rank_heads(*heard, seen.words).ranked
    assert ranked[0].head == Head(1, 1)
    assert ranked[0].right > 0.5 > 3 * ranked[0].baseline
    assert len(ranked) == speech.LAYERS * speech.HEADS
    common = rank_heads(*heard)  # of heads that agree on nothing
    assert any("give --times" in note for note in common.notes)
    start = len(heard[1].axes["decoder"][0]) - len(seen.tokens)
    for number, said in enumerate(seen.tokens[1:-1], start + 1):
        assert abs(said.begin - 0.05 * (number - 1)) < 0.08


def test_alignment_heads_rank_by_weight_at_spoken_words(heard):
    model, prepared = heard
    whole = model.module
    whole.set_attn_implementation("eager")
    with torch.no_grad():
        maps = whole(**prepared.inputs, output_attentions=True).cross_attentions
    whole.set_attn_implementation("sdpa")
    spoken = align_words(*heard)
    first = len(prepared.axes["decoder"][0]) - len(spoken.tokens) - 1
    words = LONG.split()  # the tiny vocabulary may spell one as many tokens
    owners = [number for number, word in enumerate(spoken.words) for _ in word.tokens]
    assert [word.text for word in spoken.words] == words
    times = [(0.06 * number, 0.06 * number + 0.3) for number in range(len(words))]
    lines = (f"{begin:.2f}\t{end:.2f} {word}" for (begin, end), word in zip(times, words, strict=True))
    ranked = rank_heads(model, prepared, read_times("\n".join(lines))).ranked
    expected = {}
    for layer, of_layer in enumerate(maps):
        for head, weights in enumerate(of_layer[0].double().numpy()):
            hits, sums = [], []
            for row, word in enumerate(owners, first):
                begin, end = (round(edge / 0.02) for edge in times[word])
                hits.append(begin <= weights[row, : prepared.sound.frames].argmax() < end)
                sums.append(weights[row, begin:end].sum())
            expected[Head(layer, head)] = np.mean(hits), np.mean(sums)
    for one in ranked:
        assert (one.right, one.weight) == pytest.approx(expected[one.head], abs=1e-5)
        assert one.baseline == pytest.approx(15 / maps[0].shape[-1])
    order = [expected[one.head] for one in ranked]
    assert order == sorted(order, reverse=True)
    with pytest.raises(InputError, match="--times has 1 words, and the transcript 9"):
        rank_heads(model, prepared, read_times("0 1 The"))


@pytest.mark.parametrize(
    "written", ["", "The cat", "1 0.5 The", "nan 1 The", '{"words": [{"text": "The"}]}', "{"]
)
def test_invalid_times_file_is_refused(written):
    with pytest.raises(InputError, match="begin, end and word"):
        read_times(written)


def test_alignment_picture_has_map_path_and_word_starts(heard):
    result = align_words(*heard, [Head(1, 1)])
    picture = result.picture
    assert picture.values.shape == (len(result.tokens), speech.FRAMES)
    assert [frame * picture.seconds for frame in picture.path] == pytest.approx(
        [*(token.begin for token in result.tokens), result.tokens[-1].end]
    )
    assert [(word, frame * picture.seconds) for word, frame in picture.words] == [
        (word.text, pytest.approx(word.begin)) for word in result.words
    ]
    middle = np.array([2.5 * row for row in range(len(picture.values))]) + picture.values[0].argmax()
    assert np.abs(picture.values.argmax(-1) - middle).max() < 12  # the planted head moves 2.5 frames a token
    with drawing(picture) as (score, _):
        spectrogram = next(axes for axes in score.axes if not axes.lines or axes.get_ylim()[0] == 0)
        map_ = next(axes for axes in score.axes if axes is not spectrogram)
        line = map_.lines[-1].get_xydata()
        assert [text.get_text() for text in spectrogram.texts] == [word for word, _ in picture.words]
    ends = [[begin - 0.5, end - 0.5] for begin, end in itertools.pairwise(picture.path)]
    np.testing.assert_array_equal(line[: 2 * len(ends), 0], np.ravel(ends))
    np.testing.assert_array_equal(line[: 2 * len(ends), 1], np.repeat(range(len(ends)), 2))


def test_alignment_heads_are_the_chosen_or_upper_half_of_layers(heard):
    seen = align_words(*heard)
    assert seen.heads == (Head(1, 0), Head(1, 1))
    assert "all heads of layer 1 (" in seen.way
    assert align_words(*heard, [Head("L1H1"), Head("L0H0")]).heads == (Head(1, 1), Head(0, 0))
    with pytest.raises(SelectionError, match="no cross-attention head L7H0"):
        align_words(*heard, [Head("L7H0")])


def test_alignment_has_the_notes_of_its_pass(heard, monkeypatch):
    model, prepared = heard

    def note(self, prepared, record):
        record.note_change("planted")
        return record

    monkeypatch.setattr(type(model), "note_seal", note)
    assert "planted" in align_words(model, prepared).notes
    assert "planted" in rank_heads(model, prepared).notes


def test_single_token_and_silence_have_times(model, tmp_path):
    soundfile.write(tmp_path / "silence.wav", np.zeros(16000), 16000)
    for text in ("a", "The cat sat."):
        seen = align_words(model, model.prepare_audio(tmp_path / "silence.wav", text))
        assert all(0 <= word.begin <= word.end <= 1 for word in seen.words)
        assert " ".join(word.text for word in seen.words) == text


def test_empty_transcript_or_encoder_cannot_be_aligned(model, tone, tmp_path):
    with pytest.raises(InputError, match="the transcript is empty"):
        align_words(model, model.prepare_audio(tone))
    encoder = load(speech.encoder(tmp_path, "hubert"))
    with pytest.raises(InputError, match="cannot align words"):
        align_words(encoder, encoder.prepare_audio(tone))


@pytest.mark.parametrize(
    ("spelled", "decode", "words"),
    [
        ("Ġ The Ġc at , Ġsat .", None, [("The", 0, 2), ("cat,", 2, 5), ("sat.", 5, 7)]),
        ("猫 が 。 Ġok", None, [("猫", 0, 1), ("が。", 1, 3), ("ok", 3, 4)]),
        (
            "x y z",
            lambda ids: bytes(" é".encode()[at] for at in ids).decode("utf-8", "replace"),
            [("é", 0, 3)],
        ),
    ],
    ids=["pieces and punctuation", "scripts without spaces: a word a letter", "bytes of one letter"],
)
def test_spoken_tokens_join_into_words(spelled, decode, words):
    spelled = spelled.split()

    def plain(ids):
        return "".join(spelled[id_] for id_ in ids).replace("Ġ", " ")

    vocabulary = Vocabulary(lambda ids: [spelled[id_] for id_ in ids], decode or plain, set())
    tokens = [SpokenToken(Token(text, number), number, number + 1) for number, text in enumerate(spelled)]
    assert [(word.text, word.begin, word.end) for word in join_words(tokens, vocabulary)] == words


def test_pauses_are_excluded_from_words(planted, tmp_path):
    """The path of the tokens has no gaps; the sound begins at 0.15 s, and pauses in the last word's end."""
    samples = 0.1 * np.random.default_rng(0).standard_normal(32000)
    for begin, end in ((0.0, 0.15), (0.68, 0.90)):
        samples[round(begin * 16000) : round(end * 16000)] = 0
    soundfile.write(tmp_path / "a.wav", samples, 16000)
    model = load(planted, generative=True)
    seen = align_words(model, model.prepare_audio(tmp_path / "a.wav", LONG), [Head(1, 1)])
    assert [one.end for one in seen.tokens][:-1] == [one.begin for one in seen.tokens][1:]
    first, *others, last = seen.words
    assert (first.begin, last.end) == (pytest.approx(0.15, abs=0.03), pytest.approx(0.70, abs=0.04))
    assert seen.tokens[0].begin < 0.05
    assert seen.tokens[-1].end > 0.8
    times = {one.begin for one in seen.tokens} | {one.end for one in seen.tokens}
    assert {edge for word in others for edge in (word.begin, word.end)} <= times


def test_word_confidence_is_the_model_probability(model, folder, tone):
    prepared = model.prepare_audio(tone, LONG)
    seen = align_words(model, prepared)
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    with torch.inference_mode():
        shares = theirs(**prepared.inputs).logits[0].softmax(-1)
    ids = prepared.inputs["decoder_input_ids"][0].tolist()
    start = len(ids) - len(seen.tokens)
    expected = [float(shares[at - 1, ids[at]]) for at in range(start, len(ids))]
    assert [one.confidence for one in seen.tokens] == pytest.approx(expected, rel=1e-4)
    spelled = model.reader.vocabulary.spell(ids[start:])
    starts = [at for at, text in enumerate(spelled) if text.startswith("Ġ")]
    groups = [expected[start:end] for start, end in itertools.pairwise([*starts, len(expected)])]
    assert [word.confidence for word in seen.words] == pytest.approx(list(map(np.mean, groups)), rel=1e-4)
