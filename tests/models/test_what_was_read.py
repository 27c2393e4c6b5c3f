"""The text is what the model read, and standard output holds nothing but answers."""

import json
import sys
import threading

import pytest
import torch
from tokenizers import Tokenizer

from attnscope.capture import Keep
from attnscope.errors import ModelError
from attnscope.limits import foreign_output
from attnscope.models import load
from attnscope.models.targets import score_prediction
from attnscope.models.text.tokens import tokens_of, tokens_of_spellings
from tests.models.folders import gpt2, minilm, t5

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


def test_a_folder_without_its_tokenizers_files_is_refused_and_names_tokens_by_their_numbers(tmp_path):
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


def test_an_id_that_the_tokenizer_does_not_have_is_shown_as_its_number(tmp_path):
    model = load(gpt2(tmp_path, vocab_size=200_000))
    before = model.prepare("The cat").tokens
    tokens = model.reader.vocabulary.extend(before, [128_005, before[0].id])
    assert tokens[len(before)].text == "id 128,005"
    assert tokens[-1].text == before[0].text
    assert tokens_of_spellings([7], [None], ())[0].text == "id 7"


def test_what_foreign_code_prints_goes_to_standard_error(tmp_path, capsys):
    (tmp_path / "loud.py").write_text(PRINTING)
    model, writes = load(f"{tmp_path}/loud.py:Loud"), load(gpt2(tmp_path / "gpt2"), generative=True)
    model.run(model.prepare("The cat"), [Keep(lambda site: range(2))])
    writes.writer.transformer.register_forward_hook(lambda *call: print("printed by a hook"))
    writes.generate(writes.prepare("The cat"), 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert all(f"printed {where}" in err for where in ("at import", "in forward", "by a hook"))


def test_threads_that_run_foreign_code_at_once_leave_standard_output_as_it_was():
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


def test_words_that_the_vocabulary_lacks_are_marked_beside_the_text_and_counted():
    model = load(minilm())
    prepared = model.prepare("The cat 🦩 sat [UNK] on 🦩.")
    assert [token.text for token in prepared.tokens if "[UNK]" in token.text] == [
        "🦩 [UNK]",
        "[UNK]",
        "🦩 [UNK]",
    ]
    assert prepared.notes == (f"2 of {len(prepared.tokens)} tokens are unknown to the vocabulary: [UNK]",)
    assert model.prepare("The cat").notes == ()


def test_a_tokenizers_folder_needs_no_model_beside_it(tmp_path):
    folder = gpt2(tmp_path / "whole")
    text = "The cat sat on the mat."
    (tmp_path / "module.py").write_text(PRINTING)
    wanted = load(f"{tmp_path}/module.py:Loud", tokenizer=folder).prepare(text).tokens
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (tmp_path / "whole" / name).unlink()
        assert load(f"{tmp_path}/module.py:Loud", tokenizer=folder).prepare(text).tokens == wanted


@pytest.mark.parametrize("model", ["own", "folder"])
def test_another_tokenizer_is_refused_where_it_would_not_be_used(model, tmp_path):
    name = gpt2(tmp_path) if model == "folder" else model
    with pytest.raises(ModelError, match="reads with its own tokenizer"):
        load(name, tokenizer="own-causal")


@pytest.mark.parametrize("token", ["", "nowhere", None])
def test_what_stands_for_unknown_words_is_in_the_vocabulary_or_there_is_none(token, tmp_path):
    folder = t5(tmp_path / "t5")
    file = tmp_path / "t5" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"unk_token": token}))
    if token == "":
        with pytest.raises(
            ModelError, match=r"^the tokenizer of [^ ]* lacks '', its token for unknown words"
        ):
            load(folder).prepare("The cat sat.")
    else:  # the library adds a token that it lacks
        assert load(folder).prepare("The cat sat.").tokens


@pytest.mark.parametrize("number", [-1, 1 << 31, 1 << 63, 1 << 70])
def test_a_decoder_begins_with_a_token(number, tmp_path):
    folder = t5(tmp_path / "t5")
    file = tmp_path / "t5" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"decoder_start_token_id": number}))
    with pytest.raises(ModelError):
        load(folder).prepare("The cat sat.")


@pytest.mark.parametrize("ids", [[], [1, 1]])
def test_a_special_token_with_more_or_fewer_ids_than_names_is_a_sentence(ids):
    tokenizer = Tokenizer.from_file(f"{minilm()}/tokenizer.json")
    damaged = json.loads(tokenizer.to_str())
    damaged["post_processor"]["special_tokens"]["[CLS]"]["ids"] = ids
    encoding = Tokenizer.from_str(json.dumps(damaged)).encode("The cat sat.")
    with pytest.raises(ModelError, match="the tokenizer is damaged"):
        tokens_of(encoding, ["The cat sat."])
