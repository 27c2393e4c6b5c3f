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


def test_a_line_without_end_is_read_in_pieces(tmp_path, tokenizer, monkeypatch):
    path = tmp_path / "long.txt"
    path.write_text("the cat sat " * 40 + "\n\n" * 5000 + "a dog\n")
    whole = data.write_stream(data.Lines([path]), tokenizer, tmp_path / "whole")
    monkeypatch.setattr(data, "LONGEST", 96)
    monkeypatch.setattr(data, "TOGETHER", 100)
    assert [len(line) for line in data.Lines([path])] == [95] * 5 + [5]
    assert data.write_stream(data.Lines([path]), tokenizer, tmp_path / "pieces") == whole + 4
    words, again = (
        [int(id_) for id_ in data.read_stream(tmp_path / name) if id_ != SEP] for name in ("whole", "pieces")
    )
    assert words == again


def test_a_stream_holds_each_line_and_its_end(tmp_path, tokenizer):
    files = write_corpus(tmp_path, files=2, count=3)
    total = data.write_stream(data.Lines(tuple(files)), tokenizer, tmp_path / "stream")
    stream = data.read_stream(tmp_path / "stream")
    assert isinstance(stream, np.memmap)
    assert len(stream) == total
    lines = [line for path in files for line in path.read_text().split("\n") if line]
    expected = [
        token for line in lines for token in [*tokenizer.encode(line, add_special_tokens=False).ids, SEP]
    ]
    assert stream.tolist() == expected


def test_held_out_files_are_never_trained_on(tmp_path):
    files = write_corpus(tmp_path, files=41, count=1)
    training, held_out = data.split_held_out(files, [], seed=0)
    assert set(training.files) | set(held_out.files) == set(files)
    assert not set(training.files) & set(held_out.files)
    assert len(held_out.files) == 2
    assert data.split_held_out(list(reversed(files)), [], seed=0) == (training, held_out)
    assert data.split_held_out(files, [], seed=1)[1] != held_out
    assert data.split_held_out(files[1:], files[:1], seed=0)[1].files == (files[0],)
    with pytest.raises(InputError, match=r"book0\.txt is both trained on and held out"):
        data.split_held_out(files, [tmp_path / "." / "book0.txt"], seed=0)


def test_of_a_single_file_the_last_lines_are_held_out(tmp_path):
    path = tmp_path / "only.txt"
    path.write_text("\n".join(f"line {n}" for n in range(100)))
    training, held_out = data.split_held_out([path], [], seed=0)
    assert list(training) == [f"line {n}" for n in range(95)]
    assert list(held_out) == [f"line {n}" for n in range(95, 100)]


def test_files_that_are_no_text_are_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8 text"):
        list(data.Lines((tmp_path / "latin.txt",)))
    with pytest.raises(InputError, match=r"none\.txt cannot be read: No such file"):
        list(data.Lines((tmp_path / "none.txt",)))


def test_a_row_is_a_stretch_of_text_between_its_marks(cutter):
    rows = cutter.training(0, 4)
    assert rows.ids.shape == rows.segments.shape == rows.targets.shape == (4, 20)
    assert (rows.ids[:, 0] == CLS).all()
    assert (rows.ids[:, -1] == SEP).all()
    assert (np.diff(rows.ids[:, 1:-1], axis=1) == 1).all()
    assert (rows.targets == data.IGNORED).all()


def test_one_pass_reads_each_stretch_once_and_the_next_in_another_order(cutter):
    steps = 2 * cutter.count // 2  # of two rows each: two passes, and the first ends inside a step
    starts = np.concatenate([cutter.training(step, 2).ids[:, 1] for step in range(steps)])
    passes = np.split(starts, 2)
    for starts in passes:
        assert (np.diff(np.sort(starts)) == cutter.stretch).all()
    assert passes[0].tolist() != passes[1].tolist()


def test_a_step_depends_on_the_seed_and_its_number_alone(cutter):
    cutter = replace(cutter, guessed=0.3, short=0.5, repeats=0.3)
    alone = cutter.training(7, 6)
    for step in range(7):
        cutter.training(step, 6)
    again = cutter.training(7, 6)
    assert np.array_equal(alone.ids, again.ids)
    assert np.array_equal(alone.targets, again.targets)
    other = replace(cutter, seed=1).training(7, 6)
    assert alone.ids.shape != other.ids.shape or not np.array_equal(alone.ids, other.ids)


def test_masks_hide_the_share_that_was_asked_for_and_never_a_mark(cutter):
    plain = replace(cutter, guessed=0.0).training(3, 100)
    rows = replace(cutter, guessed=0.3).training(3, 100)
    hidden = rows.targets != data.IGNORED
    assert 0.27 < hidden[:, 1:-1].mean() < 0.33
    assert not hidden[:, [0, -1]].any()
    assert (rows.ids[hidden] == MASK).all()
    assert np.array_equal(rows.targets[hidden], plain.ids[hidden])
    assert np.array_equal(rows.ids[~hidden], plain.ids[~hidden])


def test_causal_rows_ask_for_every_next_token(cutter):
    rows = replace(cutter, causal=True, guessed=1.0).training(0, 4)
    assert np.array_equal(rows.targets[:, :-1], rows.ids[:, 1:])
    assert (rows.targets[:, -1] == data.IGNORED).all()
    assert not (rows.ids == MASK).any()
    some = replace(cutter, guessed=0.5).training(0, 200, causal=True)
    asked = some.targets != data.IGNORED
    assert 0.45 < asked[:, :-1].mean() < 0.55
    assert np.array_equal(some.targets[:, :-1][asked[:, :-1]], some.ids[:, 1:][asked[:, :-1]])


def test_repeated_rows_repeat_and_ask_only_for_what_can_be_known(cutter):
    rows = replace(cutter, causal=True, guessed=1.0, repeats=1.0).training(0, 50)
    periods = set()
    for ids, targets in zip(rows.ids, rows.targets, strict=True):
        text = ids[1:-1]
        period = next(p for p in range(1, len(text)) if np.array_equal(text[p:], text[:-p]))
        periods.add(period)
        assert (targets[:period] == data.IGNORED).all()
        assert np.array_equal(targets[period:-1], ids[period + 1 :])
    assert len(periods) > 3


def test_short_steps_hold_four_times_the_rows(cutter):
    rows = replace(cutter, length=32, short=1.0).training(0, 4)
    assert rows.ids.shape == (16, 8)
    assert (np.diff(rows.ids[:, 1:-1], axis=1) == 1).all()


def test_half_of_the_rows_with_a_lines_end_become_a_pair(tokenizer):
    stream = np.tile(np.array([10, 11, 12, 13, SEP], dtype=np.uint32), 4000)
    rows = data.Cutter(stream, tokenizer, length=20, guessed=0.0).training(0, 200)
    pairs = rows.segments.any(1)
    assert 0.4 < pairs.mean() < 0.6
    for ids, segments in zip(rows.ids[pairs], rows.segments[pairs], strict=True):
        assert (np.diff(segments) >= 0).all()
        assert ids[np.flatnonzero(segments)[0] - 1] == SEP
    single = replace(data.Cutter(stream, tokenizer, 20), stream=np.full(500, 10, dtype=np.uint32)).training(
        0, 50
    )
    assert not single.segments.any()


def test_evaluation_is_the_same_text_and_masks_each_time(cutter):
    cutter = replace(cutter, guessed=0.15)
    first, again = cutter.evaluation(2, 6), cutter.evaluation(2, 6)
    assert np.array_equal(first.ids, again.ids)
    shown = np.where(first.targets == data.IGNORED, first.ids, first.targets)
    assert shown[:, 1:-1].ravel().tolist() == list(range(5 + 2 * 18, 5 + 6 * 18))


LINES = ["The cat sat on the mat.", "“The café isn’t open,” said the cat.", "the cats sat at the cafe"] * 3
KINDS = ["wordpiece", "bpe"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_lines_give_the_same_tokenizer(kind):
    lines = Path(__file__).read_text("utf-8").splitlines(keepends=True)
    texts = {data.train_tokenizer(lines, 400, kind).to_str() for _ in range(4)}
    assert len(texts) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_stand_around_a_text_and_between_a_pair(kind):
    tokenizer = data.train_tokenizer(LINES, 320, kind)
    assert [tokenizer.token_to_id(t) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == list(
        range(5)
    )
    pair = tokenizer.encode("the [MASK] sat", "the mat")
    assert pair.ids[0] == 2
    assert pair.ids.count(3) == 2
    assert pair.ids[-1] == 3
    assert 4 in pair.ids
    border = pair.ids.index(3) + 1
    assert pair.type_ids == [0] * border + [1] * (len(pair.ids) - border)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_tokens_lead_back_to_the_text_as_it_was(kind, lowercase):
    text = "The CAFÉ isn’t “open”."
    tokenizer = data.train_tokenizer([*LINES, text], 400, kind, lowercase)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    places = dict.fromkeys(encoding.offsets)  # the two bytes of one letter share its place
    pieces = [text[start:stop] for start, stop in places]
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")
    folded = tokenizer.encode('the café isn\'t "open".', add_special_tokens=False)
    assert (folded.ids == encoding.ids) == lowercase


def test_only_bytes_can_spell_what_the_lines_lack():
    text = "猫 🙂"
    words, pieces = data.train_tokenizer(LINES, 320), data.train_tokenizer(LINES, 320, "bpe")
    assert words.encode(text, add_special_tokens=False).tokens == ["[UNK]", "[UNK]"]
    assert 1 not in pieces.encode(text).ids
    assert pieces.decode(pieces.encode(text).ids) == " " + text


def test_rare_letters_give_way_to_a_vocabulary_that_is_small():
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 500)]
    tokenizer = data.train_tokenizer([*LINES, *letters], 200)
    assert tokenizer.get_vocab_size() <= 200
    assert tokenizer.token_to_id("the") is not None


def test_bad_wishes_are_refused(tmp_path):
    with pytest.raises(ModelError, match="a bpe vocabulary needs 300 tokens or more, not 299"):
        data.train_tokenizer(LINES, 299, "bpe")
    path = tmp_path / "tokenizer.json"
    data.train_tokenizer(LINES, 64).save(str(path))
    assert load_tokenizer(path).get_vocab_size() <= 64
    path.write_text(path.read_text().replace("[MASK]", "[HIDE]"))
    with pytest.raises(ModelError, match=r"has no token \[MASK\]"):
        load_tokenizer(path)
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        load_tokenizer(tmp_path / "none.json")
