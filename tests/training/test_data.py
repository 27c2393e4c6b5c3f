from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnscope.errors import InputError, ModelError
from attnscope.network import load_tokenizer
from attnscope.training import data
from tests.training.corpus import sentences, write_corpus

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def tokenizer():
    return data.train_tokenizer(sentences(200, 0), 100)


@pytest.fixture
def cutter(tokenizer):
    """Rows over the numbers 5, 6, 7, ..., in which every token says where it came from."""
    return data.Cutter(np.arange(5, 2000, dtype=np.uint32), tokenizer, length=20, guessed=0.0)


def test_endless_line_is_read_in_pieces(tmp_path, tokenizer, monkeypatch):
    (tmp_path / "long.txt").write_text("the cat sat " * 40 + "\n\n" * 5000 + "a dog\n")
    lines = data.Lines([tmp_path / "long.txt"])
    whole = data.write_stream(lines, tokenizer, tmp_path / "whole")
    monkeypatch.setattr(data, "MOST_LINE_CHARACTERS", 96)
    monkeypatch.setattr(data, "BATCH_CHARACTERS", 100)
    assert [len(line) for line in lines] == [95] * 5 + [5]
    assert data.write_stream(lines, tokenizer, tmp_path / "pieces") == whole + 4
    streams = (data.read_stream(tmp_path / name) for name in ("whole", "pieces"))
    assert np.array_equal(*(stream[stream != SEP] for stream in streams))


def test_token_stream_has_each_line_and_its_end(tmp_path, tokenizer):
    files = write_corpus(tmp_path, files=2, count=3)
    total = data.write_stream(data.Lines(tuple(files)), tokenizer, tmp_path / "stream")
    stream = data.read_stream(tmp_path / "stream")
    assert isinstance(stream, np.memmap)
    assert len(stream) == total
    lines = [line for path in files for line in path.read_text().split("\n") if line]
    ids = [[*tokenizer.encode(line, add_special_tokens=False).ids, SEP] for line in lines]
    assert np.array_equal(stream, np.concatenate(ids))


def test_held_out_files_are_never_trained_on(tmp_path):
    files = write_corpus(tmp_path, files=41, count=1)
    training, held_out = data.split_held_out(files, [], seed=0)
    assert sorted([*training.files, *held_out.files]) == sorted(files)
    assert len(held_out.files) == 2
    assert data.split_held_out(list(reversed(files)), [], seed=0) == (training, held_out)
    assert data.split_held_out(files, [], seed=1)[1] != held_out
    assert data.split_held_out(files[1:], files[:1], seed=0)[1].files == (files[0],)
    with pytest.raises(InputError, match=r"book0\.txt is both trained on and held out"):
        data.split_held_out(files, [tmp_path / "." / "book0.txt"], seed=0)


def test_single_file_holds_out_its_last_lines(tmp_path):
    path, lines = tmp_path / "only.txt", [f"line {n}" for n in range(100)]
    path.write_text("\n".join(lines))
    training, held_out = data.split_held_out([path], [], seed=0)
    assert (list(training), list(held_out)) == (lines[:95], lines[95:])


def test_unreadable_training_files_are_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    for name, problem in (("latin.txt", "latin.txt is not UTF-8"), ("none.txt", "none.txt: No such file")):
        with pytest.raises(InputError, match=problem):
            list(data.Lines((tmp_path / name,)))


def test_training_row_is_text_between_special_tokens(cutter):
    rows = cutter.training(0, 4)
    assert rows.ids.shape == rows.segments.shape == rows.targets.shape == (4, 20)
    assert (rows.ids[:, 0] == CLS).all()
    assert (rows.ids[:, -1] == SEP).all()
    assert (np.diff(rows.ids[:, 1:-1], axis=1) == 1).all()
    assert (rows.targets == data.IGNORED).all()


def test_epoch_reads_each_stretch_once_in_a_new_order(cutter):
    steps = 2 * cutter.count // 2  # of two rows each: two passes, and the first ends inside a step
    starts = np.concatenate([cutter.training(step, 2).ids[:, 1] for step in range(steps)])
    passes = np.split(starts, 2)
    for starts in passes:
        assert (np.diff(np.sort(starts)) == cutter.stretch).all()
    assert passes[0].tolist() != passes[1].tolist()


def test_training_step_depends_only_on_seed_and_number(cutter):
    cutter = replace(cutter, guessed=0.3, short=0.5, repeats=0.3)
    alone = cutter.training(7, 6)
    again = [cutter.training(step, 6) for step in range(8)][-1]
    assert np.array_equal(alone.ids, again.ids)
    assert np.array_equal(alone.targets, again.targets)
    assert not np.array_equal(alone.ids, replace(cutter, seed=1).training(7, 6).ids)


def test_masking_hides_the_given_share_without_special_tokens(cutter):
    plain = replace(cutter, guessed=0.0).training(3, 100)
    rows = replace(cutter, guessed=0.3).training(3, 100)
    hidden = rows.targets != data.IGNORED
    assert 0.27 < hidden[:, 1:-1].mean() < 0.33
    assert not hidden[:, [0, -1]].any()
    assert (rows.ids[hidden] == MASK).all()
    assert np.array_equal(rows.targets[hidden], plain.ids[hidden])
    assert np.array_equal(rows.ids[~hidden], plain.ids[~hidden])


def test_causal_targets_are_the_next_tokens(cutter):
    rows = replace(cutter, causal=True, guessed=1.0).training(0, 4)
    assert np.array_equal(rows.targets[:, :-1], rows.ids[:, 1:])
    assert (rows.targets[:, -1] == data.IGNORED).all()
    assert not (rows.ids == MASK).any()
    some = replace(cutter, guessed=0.5).training(0, 200, causal=True)
    asked = some.targets != data.IGNORED
    assert 0.45 < asked[:, :-1].mean() < 0.55
    assert np.array_equal(some.targets[:, :-1][asked[:, :-1]], some.ids[:, 1:][asked[:, :-1]])


def test_repeated_rows_predict_only_repeated_tokens(cutter):
    rows = replace(cutter, causal=True, guessed=1.0, repeats=1.0).training(0, 50)
    periods = [
        next(p for p in range(1, 18) if np.array_equal(ids[1 + p : -1], ids[1 : -1 - p])) for ids in rows.ids
    ]
    for period, ids, targets in zip(periods, rows.ids, rows.targets, strict=True):
        assert (targets[:period] == data.IGNORED).all()
        assert np.array_equal(targets[period:-1], ids[period + 1 :])
    assert len(set(periods)) > 3


def test_short_steps_have_four_times_the_rows(cutter):
    rows = replace(cutter, length=32, short=1.0).training(0, 4)
    assert rows.ids.shape == (16, 8)
    assert (np.diff(rows.ids[:, 1:-1], axis=1) == 1).all()


def test_half_of_the_rows_with_a_line_end_become_pairs(tokenizer):
    stream = np.tile(np.array([10, 11, 12, 13, SEP], dtype=np.uint32), 4000)
    rows = data.Cutter(stream, tokenizer, length=20, guessed=0.0).training(0, 200)
    pairs = rows.segments.any(1)
    assert 0.4 < pairs.mean() < 0.6
    for ids, segments in zip(rows.ids[pairs], rows.segments[pairs], strict=True):
        assert (np.diff(segments) >= 0).all()
        assert ids[np.flatnonzero(segments)[0] - 1] == SEP
    single = data.Cutter(np.full(500, 10, dtype=np.uint32), tokenizer, 20)
    assert not single.training(0, 50).segments.any()


def test_evaluation_rows_are_repeatable(cutter):
    cutter = replace(cutter, guessed=0.15)
    first, again = cutter.evaluation(2, 6), cutter.evaluation(2, 6)
    assert np.array_equal(first.ids, again.ids)
    shown = np.where(first.targets == data.IGNORED, first.ids, first.targets)
    assert shown[:, 1:-1].ravel().tolist() == list(range(5 + 2 * 18, 5 + 6 * 18))


LINES = ["The cat sat on the mat.", "“The café isn’t open,” said the cat.", "the cats sat at the cafe"] * 3
KINDS = ["wordpiece", "bpe"]


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_training_is_repeatable_and_adds_special_tokens(kind):
    lines = Path(__file__).read_text("utf-8").splitlines(keepends=True)
    assert len({data.train_tokenizer(lines, 400, kind).to_str() for _ in range(4)}) == 1
    tokenizer = data.train_tokenizer(LINES, 320, kind)
    pair = tokenizer.encode("the [MASK] sat", "the mat")
    assert [pair.ids[0], pair.ids.count(SEP), pair.ids[-1], pair.ids.count(MASK)] == [CLS, 2, SEP, 1]
    border = pair.ids.index(SEP) + 1
    assert pair.type_ids == [0] * border + [1] * (len(pair.ids) - border)
    assert [tokenizer.id_to_token(id_) for id_ in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_token_offsets_recover_the_text(kind, lowercase):
    text = "The CAFÉ isn’t “open”."
    tokenizer = data.train_tokenizer([*LINES, text], 400, kind, lowercase)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    places = dict.fromkeys(encoding.offsets)  # the two bytes of one letter share its place
    assert "".join(text[start:stop] for start, stop in places).replace(" ", "") == text.replace(" ", "")
    folded = tokenizer.encode('the café isn\'t "open".', add_special_tokens=False)
    assert (folded.ids == encoding.ids) == lowercase


def test_only_byte_vocabulary_spells_unseen_characters():
    text, letters = "猫 🙂", [chr(code) for code in range(0x4E00, 0x4E00 + 500)]
    words, pieces = data.train_tokenizer([*LINES, *letters], 200), data.train_tokenizer(LINES, 320, "bpe")
    assert words.get_vocab_size() <= 200
    assert words.token_to_id("the") is not None
    assert words.encode(text, add_special_tokens=False).tokens == ["[UNK]", "[UNK]"]
    assert 1 not in pieces.encode(text).ids
    assert pieces.decode(pieces.encode(text).ids) == " " + text


def test_invalid_vocabulary_options_are_refused(tmp_path):
    with pytest.raises(ModelError, match="a bpe vocabulary needs 300 tokens or more, not 299"):
        data.train_tokenizer(LINES, 299, "bpe")
    path = tmp_path / "tokenizer.json"
    data.train_tokenizer(LINES, 64).save(str(path))
    assert load_tokenizer(path).get_vocab_size() <= 64
    path.write_text(path.read_text().replace("[MASK]", "[HIDE]"))
    for name, said in (
        ("tokenizer.json", r"has no token \[MASK\]"),
        ("none.json", "cannot read .* as a tokenizer"),
    ):
        with pytest.raises(ModelError, match=said):
            load_tokenizer(tmp_path / name)
