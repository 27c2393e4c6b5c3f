import json
import math
from dataclasses import replace

import pytest
import torch

from attnscope.errors import InputError, ModelError, OutputError
from attnscope.network.encoder import EncoderConfig
from attnscope.network.folder import load_encoder
from attnscope.training.train import (
    Recipe,
    Settings,
    held_out_loss,
    train_on_files,
)
from tests.training.corpus import press_ctrl_c, write_corpus

CONFIG = EncoderConfig(vocabulary=100, width=32, layers=2, heads=4, hidden=64, max_positions=64)
RECIPE = Recipe(CONFIG, length=32, repeats=0.1)
SETTINGS = Settings(steps=6, batch=8, rate=5e-3, evaluate_every=3, evaluate_rows=8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("books"), files=3, count=60)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "model"
    return folder, train_on_files(files, folder, RECIPE, SETTINGS)


def test_a_run_leaves_a_model_and_a_summary_and_nothing_else(trained, files):
    folder, outcome = trained
    assert outcome.done
    names = {"config.json", "model.safetensors", "tokenizer.json", "training.json"}
    assert {path.name for path in folder.iterdir()} == names
    encoder, tokenizer = load_encoder(folder)
    assert encoder.config == replace(CONFIG, vocabulary=tokenizer.get_vocab_size(), trained=True)
    for name, weight in outcome.encoder.state_dict().items():
        assert torch.equal(encoder.state_dict()[name], weight)
    summary = json.loads((folder / "training.json").read_text())
    assert summary["progress"]["step"] == 6
    assert summary["settings"]["steps"] == 6
    used = {file["file"] for file in summary["files"]["training"]}
    assert used | set(outcome.held_out) == {path.name for path in files}
    assert not used & set(outcome.held_out)


def test_the_loss_can_be_measured_again_from_the_folder(trained, files):
    folder, outcome = trained
    unseen = [path for path in files if path.name in outcome.held_out]
    loss, tokens = held_out_loss(folder, unseen, length=32)
    assert loss == pytest.approx(outcome.progress.held_out[-1][1], abs=1e-5)
    assert loss < math.log(outcome.encoder.config.vocabulary)
    assert tokens > 300
    assert held_out_loss(folder, unseen, length=32, seed=1)[0] != loss


def test_a_stopped_run_keeps_its_model_and_resumes_to_the_same_files(trained, files, tmp_path):
    folder = tmp_path / "model"
    stopped = train_on_files(files, folder, RECIPE, SETTINGS, observe=press_ctrl_c(2))
    assert (stopped.progress.step, stopped.done) == (2, False)
    assert load_encoder(folder)[0].config.trained
    assert weights(folder) != weights(trained[0])
    outcome = train_on_files(files, folder, RECIPE, SETTINGS, resume=True)
    assert outcome.done
    assert weights(folder) == weights(trained[0])
    assert not (folder / "training").exists()


def test_a_run_may_get_longer_but_keeps_its_other_terms(files, tmp_path):
    folder = tmp_path / "model"
    train_on_files(files, folder, RECIPE, SETTINGS, observe=press_ctrl_c(1))
    wider = replace(RECIPE, config=replace(CONFIG, width=64))
    with pytest.raises(ModelError, match="was started with width 32, not 64"):
        train_on_files(files, folder, wider, SETTINGS, resume=True)
    with pytest.raises(ModelError, match=r"was started with rate 0\.005, not 0\.1"):
        train_on_files(files, folder, RECIPE, replace(SETTINGS, rate=0.1), resume=True)
    with pytest.raises(ModelError, match="was started with repeats"):
        train_on_files(files, folder, replace(RECIPE, repeats=0.5), SETTINGS, resume=True)
    with pytest.raises(ModelError, match="was started on other files"):
        train_on_files(files[:2], folder, RECIPE, SETTINGS, resume=True)
    longer = train_on_files(files, folder, RECIPE, replace(SETTINGS, steps=8), resume=True)
    assert longer.progress.step == 8


def test_a_run_that_is_over_or_never_was_is_not_resumed(trained, files, tmp_path):
    with pytest.raises(ModelError, match=r"nothing to resume in .*: its run is over"):
        train_on_files(files, trained[0], RECIPE, SETTINGS, resume=True)
    with pytest.raises(ModelError, match=r"nothing to resume in .*: it holds no run"):
        train_on_files(files, tmp_path / "none", RECIPE, SETTINGS, resume=True)
    assert not (tmp_path / "none").exists()


def test_a_folder_that_holds_something_is_left_alone(trained, files, tmp_path):
    before = weights(trained[0])
    with pytest.raises(OutputError, match=r"exists already: choose another folder, or .* --resume"):
        train_on_files(files, trained[0], RECIPE, SETTINGS)
    assert weights(trained[0]) == before
    (tmp_path / "empty" / "training").mkdir(parents=True)  # as a Ctrl-C right at the start leaves it
    assert train_on_files(files, tmp_path / "empty", RECIPE, replace(SETTINGS, steps=1)).done
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="file exists already"):
        train_on_files(files, tmp_path / "file", RECIPE, SETTINGS)
    with pytest.raises(OutputError, match="cannot be written"):
        train_on_files(files, tmp_path / "file" / "below", RECIPE, SETTINGS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no text to train on: the files are empty"),
        ("\n \n", "the training text has 0 tokens, but sequences of 32 need 60 or more"),
        ("a few words\n" * 10, "the training text has .* tokens, but sequences of 32 need 60 or more"),
        ("a few words\n" * 100, "the held-out text has .* tokens, but sequences of 32 need 60 or more"),
    ],
)
def test_too_little_text_is_refused_and_leaves_nothing(tmp_path, text, message):
    (tmp_path / "book.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        train_on_files([tmp_path / "book.txt"], tmp_path / "model", RECIPE, SETTINGS)
    assert not (tmp_path / "model").exists()


def test_a_run_can_start_from_another_ones_encoder(trained, files, tmp_path):
    settings = replace(SETTINGS, rate=1e-9, steps=1)
    first = trained[1].encoder
    recipe = replace(RECIPE, config=first.config)
    outcome = train_on_files(files, tmp_path / "m", recipe, settings, start=trained[0])
    assert outcome.tokenizer.to_str() == trained[1].tokenizer.to_str()
    for name, weight in outcome.encoder.state_dict().items():
        torch.testing.assert_close(weight, first.state_dict()[name], rtol=0, atol=1e-6)
    with pytest.raises(ModelError, match="has another shape than what is to be trained"):
        train_on_files(files, tmp_path / "n", RECIPE, SETTINGS, start=tmp_path / "m")
    with pytest.raises(ModelError, match="holds no model"):
        train_on_files(files, tmp_path / "n", recipe, SETTINGS, start=tmp_path / "none")
    assert not (tmp_path / "n").exists()


def test_a_file_that_is_not_there_is_named(files, tmp_path):
    with pytest.raises(InputError, match=r"none\.txt cannot be read: No such file"):
        train_on_files([*files, tmp_path / "none.txt"], tmp_path / "model", RECIPE, SETTINGS)
    with pytest.raises(InputError, match=r"none\.txt cannot be read: No such file"):
        train_on_files(files, tmp_path / "model", RECIPE, SETTINGS, held_out=[tmp_path / "none.txt"])
    assert not (tmp_path / "model").exists()


def test_byte_pairs_and_next_tokens_can_be_learned_too(files, tmp_path):
    config = replace(CONFIG, vocabulary=320, causal=True)
    recipe = replace(RECIPE, config=config, tokenizer="bpe", guessed=1.0)
    outcome = train_on_files(files[:2], tmp_path / "m", recipe, SETTINGS, held_out=files[2:])
    assert outcome.held_out == (files[2].name,)
    encoder, tokenizer = load_encoder(tmp_path / "m")
    assert encoder.config.causal
    assert tokenizer.encode("猫").ids.count(1) == 0
    loss, _ = held_out_loss(tmp_path / "m", files[2:], length=32)
    assert loss == pytest.approx(outcome.progress.held_out[-1][1], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 65}, "from 16 to the model's 64 positions, not 65"),
        ({"length": 8}, "from 16 to the model's 64 positions, not 8"),
        ({"guessed": 0.0}, r"guessed is a share from 0\.01 to 1, not 0\.0"),
        ({"repeats": 1.5}, r"repeats is a share from 0\.0 to 1, not 1\.5"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        replace(RECIPE, **changes)
