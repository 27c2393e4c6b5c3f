"""Tokens read like their text, and nothing else is on standard output."""

import json
import re
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnscope.axes import coarsen_axis, join_places, places
from attnscope.errors import InputError, ModelError
from attnscope.limits import foreign_output
from attnscope.models import load
from attnscope.models.targets import score_prediction
from attnscope.models.text.tokens import (
    Vocabulary,
    spell_tokens,
    tokens_of_encoding,
    tokens_of_ids,
    tokens_of_spellings,
    without_marks,
)
from attnscope.text import clean
from tests.capture.observing import MapObserver
from tests.models.folders import LINES, changed, gpt2, made_once, minilm, t5

WORDPIECE, BYTE_LEVEL, SENTENCEPIECE = (lambda folder: minilm()), gpt2, t5


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """The tokens of texts by a tokenizer that is made once."""
    folder_of = made_once(tmp_path_factory, lambda place, make: make(place))

    def read(make, *texts):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder_of(make))
        return tokens_of_encoding(tokenizer(*texts).encodings[0], texts)

    return read


def test_wordpieces_show_original_text_and_share_word_number(tokens):
    shown = tokens(WORDPIECE, "Schrödinger Cät sat")
    assert [t.text for t in shown] == ["[CLS]", "Sc", "hr", "öd", "inger", "Cät", "sat", "[SEP]"]
    assert [t.word for t in shown] == [None, 0, 0, 0, 0, 1, 2, None]


def test_words_and_special_tokens_of_a_text_pair_are_numbered(tokens):
    pair = tokens(WORDPIECE, "a cat", "a dog")
    assert [t.text for t in pair] == ["[CLS]", "a", "cat", "[SEP]", "a", "dog", "[SEP]"]
    assert [t.special for t in pair] == [True, False, False, True, False, False, True]
    assert [t.segment for t in pair] == [0, 0, 0, 0, 1, 1, 1]
    assert [t.word for t in pair] == [None, 0, 1, None, 2, 3, None]


def test_byte_level_tokens_show_text_without_spaces(tokens):
    shown = tokens(BYTE_LEVEL, "The cat sat")
    assert "".join(t.text for t in shown) == "Thecatsat"
    assert [t.word for t in shown] == sorted(t.word for t in shown)
    assert {t.word for t in shown} == {0, 1, 2}


def test_byte_pieces_show_their_character_and_white_space_is_visible(tokens):
    assert "\n" in {t.text for t in tokens(BYTE_LEVEL, "cat\n\nsat")}
    shown = tokens(BYTE_LEVEL, "🙂")
    assert len(shown) > 1
    assert {t.text for t in shown} == {"🙂"}


@pytest.mark.parametrize(
    "make", [WORDPIECE, BYTE_LEVEL, SENTENCEPIECE], ids=["wordpiece", "bytes", "unigram"]
)
@pytest.mark.parametrize(
    "text",
    [
        "für ins Café",
        "我我我 爱",
        "def f( x):\n    return  x",
        "a 👩\u200d👧!",
        "the cat's mat, (sat).",
    ],
)
def test_token_run_is_spelled_like_its_text(tokens, make, text):
    shown = [token for token in tokens(make, text) if not token.special]
    assert spell_tokens(shown) == clean(text)
    assert join_places(places(tuple(shown)), pooled=True).text.removeprefix(" ") == text
    words = coarsen_axis(tuple(shown), words=True).places
    assert "".join(re.sub(r"\s", "", place.text) for place in words) == re.sub(r"\s", "", text)


def test_continued_text_is_spelled_once(tokens, tmp_path):
    vocabulary = transformers.AutoTokenizer.from_pretrained(gpt2(tmp_path))
    ids = vocabulary(" für 我我, sat")["input_ids"]
    spell = vocabulary.convert_ids_to_tokens
    made = Vocabulary(spell, vocabulary.decode, vocabulary.all_special_ids).extend(
        tokens(BYTE_LEVEL, "Café"), ids
    )
    assert spell_tokens(made) == "Café für 我我, sat"
    assert [place.text.strip() for place in coarsen_axis(made, words=True).places] == [
        "Café",
        "für",
        "我我,",
        "sat",
    ]


def test_sentencepiece_tokens_show_no_bar(tokens):
    shown = tokens(SENTENCEPIECE, "The cat sat")
    assert "".join(t.text for t in shown).replace(" ", "") == "Thecatsat</s>"
    assert shown[-1].special


def test_words_without_pre_tokenizer_split_at_spaces():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.train_from_iterator(LINES, trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>"))
    text = "the  cat sat on it"
    encoding = tokenizer.encode(text)
    assert set(encoding.word_ids) == {0}
    shown = tokens_of_encoding(encoding, [text])
    words = {n: "".join(t.text for t in shown if t.word == n) for n in {t.word for t in shown}}
    assert [word.strip() for word in words.values()] == text.split()


@pytest.mark.parametrize(
    ("spellings", "words"),
    [
        (("▁The", "▁c", "at", "</s>", "▁sat"), [0, 1, 1, None, 2]),
        (("The", "c", "##at", "</s>", "sat"), [0, 1, 1, None, 2]),
        (("the", "▁c", "at", "</s>", "s"), [0, 1, 1, None, 2]),
    ],
)
def test_words_without_offsets_follow_spelling(spellings, words):
    asked = SimpleNamespace(convert_ids_to_tokens=lambda ids: [spellings[i] for i in ids])
    shown = tokens_of_ids(asked, range(5), special_ids={3})
    assert [t.word for t in shown] == words
    assert [t.special for t in shown] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("spelling", "text"), [("Ġcat", "cat"), ("▁cat", "cat"), ("##ing", "ing"), ("cat</w>", "cat"), ("▁", " ")]
)
def test_token_spelling_is_readable(spelling, text):
    assert without_marks(spelling) == text


@pytest.fixture(scope="module", params=["own", "own-causal", gpt2, t5])
def reads(request, tmp_path_factory):
    named = isinstance(request.param, str)
    return load(request.param if named else request.param(tmp_path_factory.mktemp("folder")))


def test_repeated_random_tokens_keep_special_tokens_around(reads):
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


def test_repeat_random_error_gives_the_maximum(reads):
    if reads.positions is None:
        return
    with pytest.raises(InputError, match=r"pass --repeat-random (\d+)") as refused:
        reads.repeat_random(reads.positions)
    most = int(str(refused.value).rpartition(" ")[2])
    assert reads.positions - len(reads.repeat_random(most).tokens) in (0, 1)


def test_failing_tokenizer_is_one_sentence(monkeypatch, tmp_path):
    model = load(gpt2(tmp_path))
    monkeypatch.setattr(type(model.reader.tokenizer), "__call__", lambda *_, **more: {}["merges"])
    with pytest.raises(ModelError, match=r"^the tokenizer of .* fails: .*merges"):
        model.prepare("The cat sat.")


PRINTING = """
import torch
print("printed at import")

class Loud(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(40000, 8)
        self.attend = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        print("printed in forward")
        x = self.embed(ids)
        return self.attend(x, x, x)[0]
"""


@pytest.fixture
def loud(tmp_path):
    (tmp_path / "loud.py").write_text(PRINTING)
    return f"{tmp_path}/loud.py:Loud"


def test_folder_without_tokenizer_accepts_ids_alone(tmp_path):
    gpt2(tmp_path)
    for file in tmp_path.glob("*token*"):
        file.unlink()
    model, ids = load(str(tmp_path), predicting=True), torch.tensor([[1, 2, 3]])
    with pytest.raises(ModelError, match="has no tokenizer: none of "):
        model.prepare("The cat sat.")
    prepared = model.prepare_tensors({"input_ids": ids})  # which need none
    assert model.run(prepared, []).sites[0].queries == 3
    assert [token.text for token in prepared.tokens] == ["id 1", "id 2", "id 3"]
    with torch.no_grad():
        best = int(model.writer(ids).logits[0, -1].argmax())
    said = score_prediction(model, prepared, None).description
    assert said.startswith(f"the prediction: 'id {best}'")


def test_unknown_token_id_is_shown_as_its_number(tmp_path):
    model = load(gpt2(tmp_path, vocab_size=200_000))
    before = model.prepare("The cat").tokens
    tokens = model.reader.vocabulary.extend(before, [128_005, before[0].id])
    assert tokens[len(before)].text == "id 128,005"
    assert tokens[-1].text == before[0].text
    assert tokens_of_spellings([7], [None], ())[0].text == "id 7"


def test_output_of_foreign_code_goes_to_standard_error(loud, tmp_path, capsys):
    model, writes = load(loud), load(gpt2(tmp_path / "gpt2"), generative=True)
    model.run(model.prepare("The cat"), [MapObserver(lambda site: range(2))])
    writes.writer.transformer.register_forward_hook(lambda *call: print("printed by a hook"))
    writes.generate(writes.prepare("The cat"), 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert all(f"printed {where}" in err for where in ("at import", "in forward", "by a hook"))


def test_standard_output_is_restored_after_concurrent_foreign_code():
    before, entered, left = sys.stdout, threading.Barrier(2), threading.Event()

    def first():
        with foreign_output():
            entered.wait()
        left.set()

    other = threading.Thread(target=first)
    other.start()
    with foreign_output():
        entered.wait()
        left.wait()  # the one that began first ends first
        assert sys.stdout is sys.stderr
    other.join()
    assert sys.stdout is before


def test_unknown_words_are_marked_and_counted():
    model = load(minilm())
    prepared = model.prepare("The cat 🦩 sat [UNK] on 🦩.")
    unknown = [token.text for token in prepared.tokens if "[UNK]" in token.text]
    assert unknown == ["🦩 [UNK]", "[UNK]", "🦩 [UNK]"]
    assert prepared.notes == (f"2 of {len(prepared.tokens)} tokens are unknown to the vocabulary: [UNK]",)
    assert model.prepare("The cat").notes == ()


def test_tokenizer_folder_needs_no_model(loud, tmp_path):
    folder, text = gpt2(tmp_path / "whole"), "The cat sat on the mat."
    wanted = load(loud, tokenizer=folder).prepare(text).tokens
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (tmp_path / "whole" / name).unlink()
        assert load(loud, tokenizer=folder).prepare(text).tokens == wanted


def test_unused_tokenizer_option_is_refused(tmp_path):
    for name in ("own", gpt2(tmp_path)):
        with pytest.raises(ModelError, match="reads with its own tokenizer"):
            load(name, tokenizer="own-causal")


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        (
            "tokenizer_config.json",
            {"unk_token": ""},
            "tokenizer of [^ ]* lacks '', its token for unknown words",
        ),
        *(("config.json", {"decoder_start_token_id": id_}, None) for id_ in (-1, 1 << 31, 1 << 63, 1 << 70)),
    ],
)
def test_invalid_unknown_or_start_token_is_refused(file, change, sentence, tmp_path):
    t5(tmp_path / "t5")
    with pytest.raises(ModelError, match=sentence):
        load(changed(tmp_path / "t5", file, **change)).prepare("The cat sat.")


@pytest.mark.parametrize("ids", [[], [1, 1]])
def test_special_token_with_wrong_id_count_is_refused(ids):
    tokenizer = Tokenizer.from_file(f"{minilm()}/tokenizer.json")
    damaged = json.loads(tokenizer.to_str())
    damaged["post_processor"]["special_tokens"]["[CLS]"]["ids"] = ids
    encoding = Tokenizer.from_str(json.dumps(damaged)).encode("The cat sat.")
    with pytest.raises(ModelError, match="the tokenizer is damaged"):
        tokens_of_encoding(encoding, ["The cat sat."])
