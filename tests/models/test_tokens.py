"""Tokens read as a person reads them, however they are spelled, and beside pictures and sounds."""

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.models.text.tokens import tokens_of, tokens_of_ids, without_marks
from tests.models.folders import LINES, gpt2, minilm, t5


@pytest.fixture(scope="module")
def wordpiece():
    return transformers.AutoTokenizer.from_pretrained(minilm())


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return transformers.AutoTokenizer.from_pretrained(gpt2(tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    return transformers.AutoTokenizer.from_pretrained(t5(tmp_path_factory.mktemp("t5")))


def tokens(tokenizer, *texts):
    return tokens_of(tokenizer(*texts).encodings[0], texts)


def test_wordpieces_lose_their_hashes_keep_capitals_and_accents_and_share_the_number_of_their_word(wordpiece):
    shown = tokens(wordpiece, "Schrödinger Cät sat")
    assert [t.text for t in shown] == ["[CLS]", "Sc", "hr", "öd", "inger", "Cät", "sat", "[SEP]"]
    assert [t.word for t in shown] == [None, 0, 0, 0, 0, 1, 2, None]


def test_words_are_numbered_through_both_texts_of_a_pair_and_special_tokens_are_known(wordpiece):
    pair = tokens(wordpiece, "a cat", "a dog")
    assert [t.special for t in pair] == [True, False, False, True, False, False, True]
    assert [(t.text, t.segment, t.word) for t in pair] == [
        ("[CLS]", 0, None), ("a", 0, 0), ("cat", 0, 1), ("[SEP]", 0, None),
        ("a", 1, 2), ("dog", 1, 3), ("[SEP]", 1, None)
    ]  # fmt: skip


def test_byte_level_tokens_are_slices_of_the_text_without_their_space(byte_level):
    shown = tokens(byte_level, "The cat sat")
    assert "".join(t.text for t in shown) == "Thecatsat"
    assert not any("Ġ" in t.text for t in shown)
    assert [t.word for t in shown] == sorted(t.word for t in shown)
    assert {t.word for t in shown} == {0, 1, 2}


def test_every_piece_of_a_character_shows_the_character(byte_level):
    shown = tokens(byte_level, "🙂")
    assert len(shown) > 1
    assert {t.text for t in shown} == {"🙂"}


def test_white_space_that_is_a_token_stays_visible_to_the_reader(byte_level):
    assert "\n" in {t.text for t in tokens(byte_level, "cat\n\nsat")}


def test_sentencepiece_tokens_lose_their_bar(sentencepiece):
    shown = tokens(sentencepiece, "The cat sat")
    assert "".join(t.text for t in shown).replace(" ", "") == "Thecatsat</s>"
    assert not any("▁" in t.text for t in shown)
    assert shown[-1].special


def test_a_tokenizer_that_never_splits_into_words_is_helped_by_spaces():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.train_from_iterator(LINES, trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>"))
    text = "the  cat sat on it"
    encoding = tokenizer.encode(text)
    assert set(encoding.word_ids) == {0}
    shown = tokens_of(encoding, [text])
    words = {n: "".join(t.text for t in shown if t.word == n) for n in {t.word for t in shown}}
    assert [word.strip() for word in words.values()] == text.split()


class Spelled:
    """The one thing that is asked of a tokenizer without offsets."""

    def __init__(self, *spellings):
        self.spellings = spellings

    def convert_ids_to_tokens(self, ids):
        return [self.spellings[i] for i in ids]


@pytest.mark.parametrize(
    ("spellings", "words"),
    [
        (("▁The", "▁c", "at", "</s>", "▁sat"), [0, 1, 1, None, 2]),
        (("The", "c", "##at", "</s>", "sat"), [0, 1, 1, None, 2]),
        (("the", "▁c", "at", "</s>", "s"), [0, 1, 1, None, 2]),
    ],
)
def test_without_offsets_the_spelling_tells_words_apart(spellings, words):
    shown = tokens_of_ids(Spelled(*spellings), range(5), special_ids={3})
    assert [t.word for t in shown] == words
    assert [t.special for t in shown] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("spelling", "text"), [("Ġcat", "cat"), ("▁cat", "cat"), ("##ing", "ing"), ("cat</w>", "cat"), ("▁", " ")]
)
def test_a_spelling_is_made_readable(spelling, text):
    assert without_marks(spelling) == text


@pytest.fixture(scope="module", params=["own", "own-causal", "gpt2", "t5"])
def reads(request, tmp_path_factory):
    made = {"gpt2": gpt2, "t5": t5}.get(request.param)
    return load(request.param if made is None else made(tmp_path_factory.mktemp(request.param)))


def test_random_tokens_stand_twice_between_the_special_tokens_of_a_text(reads):
    prepared = reads.repeat_random(8, seed=3)
    inputs = next(iter(prepared.inputs.values()))
    assert inputs[0].tolist() == [token.id for token in prepared.tokens]
    plain = [token.id for token in prepared.tokens if not token.special]
    assert plain[:8] == plain[8:]
    assert len(set(plain)) == 8
    around = [token.id for token in reads.prepare("cat").tokens if token.special]
    assert [token.id for token in prepared.tokens if token.special] == around
    assert all(field.shape[-1] == len(prepared.tokens) for field in prepared.inputs.values())
    assert reads.repeat_random(8, seed=3).tokens == prepared.tokens
    assert reads.repeat_random(8, seed=4).tokens != prepared.tokens
    assert reads.run(prepared, []).sites


def test_as_many_random_tokens_are_offered_as_there_is_room_for(reads):
    if reads.positions is None:
        return
    with pytest.raises(InputError, match=r"pass --repeat-random (\d+)") as refused:
        reads.repeat_random(reads.positions)
    most = int(str(refused.value).rpartition(" ")[2])
    assert reads.positions - len(reads.repeat_random(most).tokens) in (0, 1)


def test_a_tokenizer_that_fails_is_one_sentence(monkeypatch, tmp_path):
    model = load(gpt2(tmp_path))

    def fail(*_, **more):
        raise KeyError("merges")

    monkeypatch.setattr(type(model.reader.tokenizer), "__call__", fail)
    with pytest.raises(ModelError, match=r"^the tokenizer of .* fails: .*merges"):
        model.prepare("The cat sat.")
