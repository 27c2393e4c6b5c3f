"""Texts longer than any model reads are read only as far as needed."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer

from attnscope.errors import InputError
from attnscope.models import load, model
from attnscope.models.huggingface.reader import FolderReader
from attnscope.models.inputs import Limit
from attnscope.models.model import Model
from attnscope.models.request import InputRequest
from attnscope.models.text import reader
from tests.models.folders import gpt2, minilm, t5

BOOK = "A cat sat there. " * 100_000  # 1.7 million characters
READ = 20_000  # of them are read here, where it would be a million


@pytest.fixture(scope="module")
def own():
    return load("own")


class Counting:
    """A tokenizer that notes how many characters it is given together, call by call."""

    def __init__(self, tokenizer):
        self.tokenizer, self.sizes, self.made = tokenizer, [], []

    def encode(self, text, second=None):
        self.sizes.append(len(text))
        return self.tokenizer.encode(text, second)

    def encode_batch(self, texts):
        self.sizes.append(sum(map(len, texts)))
        return self.tokenizer.encode_batch(texts)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


@pytest.fixture
def watched(own, monkeypatch):
    """The tokenizer of a model that reads less, with how many tokens its reader makes, text by text."""
    for module in (reader, model):
        monkeypatch.setattr(module, "MOST_CHARACTERS", READ)
    tokenizer, tokens_of_encoding = Counting(own.reader.tokenizer), reader.tokens_of_encoding

    def counted(encoding, texts):
        tokenizer.made.append(len(encoding))
        return tokens_of_encoding(encoding, texts)

    monkeypatch.setattr(own, "reader", replace(own.reader, tokenizer=tokenizer))
    monkeypatch.setattr(reader, "tokens_of_encoding", counted)
    return tokenizer


def test_only_start_of_book_is_read_with_unchanged_tokens(own, watched):
    book = own.prepare(BOOK, limit=Limit(truncate=True))
    assert max(watched.sizes) == READ
    assert watched.made == [512]
    assert book.tokens == own.prepare(BOOK[:10_000], limit=Limit(truncate=True)).tokens
    (note,) = book.notes
    assert note.startswith("cut: the first 512 of more than 5,885 tokens")


def test_too_long_book_is_refused_before_tokenizing(own, watched):
    with pytest.raises(InputError, match=r"has more than 5,885 tokens and own reads at most 512"):
        own.prepare(BOOK)
    (refused,) = own.prepare_all([(BOOK,)])
    assert "more than" in str(refused)
    assert max(watched.sizes) == READ
    assert watched.made == []


def test_long_texts_are_tokenized_one_at_a_time(own, watched, monkeypatch):
    monkeypatch.setattr(reader, "MOST_CHARACTERS", 1000)
    texts = [(BOOK[:600],), ("A cat.",), (BOOK[:700],), (BOOK[:300],)]
    read = [prepared.tokens for prepared in own.prepare_all(texts)]
    assert read == [own.prepare(*text).tokens for text in texts]
    assert watched.sizes[:2] == [1306, 300]


def test_model_without_positions_limits_characters():
    bare = Model("it", torch.nn.Module(), None)
    long = ["a" * 2_000_000]
    assert bare.fit(["a" * 40], Limit())(9) == (None, ())
    with pytest.raises(InputError, match="the text has 2,000,000 characters, and at most 1,048,576"):
        bare.fit(long, Limit())(9)
    cut = "cut: the first 1,048,576 of 2,000,000 characters are read"
    assert bare.fit(long, Limit(truncate=True))(9) == (None, (cut,))
    assert bare.fit(long, Limit(5))(9) == (5, ("cut: the first 5 of more than 9 tokens are shown",))


def test_too_long_chat_is_refused_not_cut(own):
    with pytest.raises(InputError, match="the text has 1,700,000 characters: shorten it to 1,048,576"):
        InputRequest(text=BOOK, chat=True).read(own)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("make", "more"), [(gpt2, []), (t5, []), (None, []), (None, ["sat mat"])])
def test_whole_book_is_tokenized_only_once(make, more, side, monkeypatch, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(make(tmp_path) if make else minilm(), truncation_side=side)
    texts = ["It was the best of times, it was the worst of times; " * 400, *more]
    expected, count = tokenizer(*texts, truncation=True, max_length=50), len(tokenizer(*texts)["input_ids"])
    lengths, call = [], type(tokenizer).__call__

    def counted(self, *texts, **options):
        lengths.append(len(texts[0]))
        return call(self, *texts, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    encoded = FolderReader("it", tokenizer).read(texts, lambda count: (50, (f"{count} tokens",)))
    assert dict(encoded.fields) == dict(expected)
    assert [token.id for token in encoded.tokens] == expected["input_ids"]
    assert encoded.notes[-1] == f"{count} tokens"
    whole = lengths.count(len(texts[0]))
    assert more or (whole, min(lengths) < 3000) == (1 if side == "right" else 2, True)
