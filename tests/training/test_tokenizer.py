from __future__ import annotations

from pathlib import Path

import pytest

from attnscope.errors import ModelError
from attnscope.network.folder import load_tokenizer
from attnscope.training.data import train_tokenizer

LINES = ["The cat sat on the mat.", "“The café isn’t open,” said the cat.", "the cats sat at the cafe"] * 3
KINDS = ["wordpiece", "bpe"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_lines_give_the_same_tokenizer(kind: str) -> None:
    lines = Path(__file__).with_name("test_data.py").read_text("utf-8").splitlines(keepends=True)
    texts = {train_tokenizer(lines, 400, kind).to_str() for _ in range(4)}
    assert len(texts) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_stand_around_a_text_and_between_a_pair(kind: str) -> None:
    tokenizer = train_tokenizer(LINES, 320, kind)
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
def test_tokens_lead_back_to_the_text_as_it_was(kind: str, lowercase: bool) -> None:
    text = "The CAFÉ isn’t “open”."
    tokenizer = train_tokenizer([*LINES, text], 400, kind, lowercase)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    places = dict.fromkeys(encoding.offsets)  # the two bytes of one letter share its place
    pieces = [text[start:stop] for start, stop in places]
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")
    folded = tokenizer.encode('the café isn\'t "open".', add_special_tokens=False)
    assert (folded.ids == encoding.ids) == lowercase


def test_only_bytes_can_spell_what_the_lines_lack() -> None:
    text = "猫 🙂"
    words, pieces = train_tokenizer(LINES, 320), train_tokenizer(LINES, 320, "bpe")
    assert words.encode(text, add_special_tokens=False).tokens == ["[UNK]", "[UNK]"]
    assert 1 not in pieces.encode(text).ids
    assert pieces.decode(pieces.encode(text).ids) == " " + text


def test_rare_letters_give_way_to_a_vocabulary_that_is_small() -> None:
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 500)]
    tokenizer = train_tokenizer([*LINES, *letters], 200)
    assert tokenizer.get_vocab_size() <= 200
    assert tokenizer.token_to_id("the") is not None


def test_bad_wishes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer 'unigram': there are wordpiece, bpe"):
        train_tokenizer(LINES, 300, "unigram")
    with pytest.raises(ModelError, match="a bpe vocabulary needs 300 tokens or more, not 299"):
        train_tokenizer(LINES, 299, "bpe")
    path = tmp_path / "tokenizer.json"
    train_tokenizer(LINES, 64).save(str(path))
    assert load_tokenizer(path).get_vocab_size() <= 64
    path.write_text(path.read_text().replace("[MASK]", "[HIDE]"))
    with pytest.raises(ModelError, match=r"has no token \[MASK\]"):
        load_tokenizer(path)
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        load_tokenizer(tmp_path / "none.json")
