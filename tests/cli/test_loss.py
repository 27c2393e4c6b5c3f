"""``attnscope loss`` of models that are not our own, against what transformers itself computes."""

import pytest
import torch
import transformers

from attnscope.models import load
from tests.models.folders import LINES, gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny causal model with its output head."""
    place = gpt2(tmp_path_factory.mktemp("gpt2"))
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.AutoConfig.from_pretrained(place)).save_pretrained(place)
    return place


@pytest.fixture
def lines(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("\n\n".join([*LINES, "A"]))
    return file


def test_the_loss_of_a_causal_model_is_that_of_its_own_labels(run, folder, lines):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    total, count = 0.0, 0
    for line in LINES:  # the line of one token has nothing to predict
        ids = tokenizer(line, return_tensors="pt").input_ids[:, :16]
        with torch.no_grad():
            total += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    ran = run("loss", folder, lines, "--length", 16)
    assert ran.code == 0, ran.err
    assert float(ran.out.split()[0]) == pytest.approx(total / count, abs=2e-3)
    assert f"({count:,} tokens, each after those before it)" in " ".join(ran.out.split())


def test_lines_are_documents_whose_order_changes_nothing(run, folder, lines, tmp_path):
    turned = tmp_path / "turned.txt"
    turned.write_text("\n".join(reversed(LINES)))
    assert run("loss", folder, lines).out == run("loss", folder, turned).out


@pytest.mark.parametrize("model", ["own", "own-causal"])
def test_a_text_shorter_than_two_sequences_is_measured_whole(run, model, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("The cat sat on the mat because it was tired. " * 18)
    tokens = load(model).prepare(file.read_text()).tokens
    ran = run("loss", model, file)
    assert f"of {sum(not token.special for token in tokens) // 2 * 2:,}" in ran.out, ran.err
    file.write_text("The cat sat.")
    assert "give at least 14" in run("loss", model, file).err
