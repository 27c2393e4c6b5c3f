"""Training ends, stops, resumes, and refuses bad input."""

import json
import math
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope.errors import InputError, ModelError, OutputError
from attnscope.network import Encoder, EncoderConfig, load_encoder
from attnscope.training import train
from attnscope.training.data import Cutter, Lines, read_stream, train_tokenizer, write_stream
from tests.training.corpus import press_ctrl_c, sentences, write_corpus

CONFIG = EncoderConfig(vocabulary=100, width=32, layers=2, heads=4, hidden=64, max_positions=32)
SETTINGS = train.Settings(steps=12, batch=8, rate=5e-3, evaluate_every=4, evaluate_rows=8)


@pytest.fixture(scope="module")
def cutters(tmp_path_factory):
    place = tmp_path_factory.mktemp("text")
    tokenizer = train_tokenizer(sentences(200, 0), 100)
    training, held_out = (Lines((path,)) for path in write_corpus(place, files=2, count=150))
    write_stream(training, tokenizer, place / "training")
    write_stream(held_out, tokenizer, place / "held-out")
    return (
        Cutter(read_stream(place / "training"), tokenizer, length=32, guessed=0.3, short=0.25, repeats=0.1),
        Cutter(read_stream(place / "held-out"), tokenizer, length=32, guessed=0.15),
    )


def run(cutters, path, settings=SETTINGS, config=CONFIG, resume=False, observe=lambda progress: None):
    torch.manual_seed(settings.seed)
    encoder = Encoder(config)
    training, held_out = (replace(cutter, causal=config.causal) for cutter in cutters)
    progress, done = train.train_encoder(encoder, training, held_out, settings, path, resume, observe)
    return encoder, progress, done


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("causal", [False, True])
def test_short_training_lowers_the_loss(cutters, tmp_path, causal):
    config = replace(CONFIG, causal=causal)
    settings = replace(SETTINGS, steps=100, evaluate_every=100)
    encoder, progress, done = run(cutters, tmp_path / "c", settings, config)
    assert (progress.step, done) == (100, True)
    torch.manual_seed(0)
    held_out = replace(cutters[1], causal=causal)
    before, after = (train.evaluate(each, held_out, settings) for each in (Encoder(config), encoder))
    assert before == pytest.approx(math.log(100), abs=0.1)
    assert progress.held_out[-1] == (100, pytest.approx(after, abs=1e-5))
    assert progress.held_out[-1][1] < 0.75 * before


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("optimizer", "dropout"), [("adamw", 0.1), ("muon", 0.0)])
def test_resumed_training_is_bit_identical(cutters, tmp_path, optimizer, dropout):
    settings = replace(SETTINGS, optimizer=optimizer, causal_first=0.3)
    config = replace(CONFIG, dropout=dropout)
    whole, progress, _ = run(cutters, tmp_path / "whole", settings, config)
    _, stopped, done = run(cutters, tmp_path / "parts", settings, config, observe=press_ctrl_c(5))
    assert (stopped.step, done) == (5, False)
    resumed, last, done = run(cutters, tmp_path / "parts", settings, config, resume=True)
    assert done
    assert (last.held_out, last.loss, last.tokens) == (progress.held_out, progress.loss, progress.tokens)
    again, _, _ = run(cutters, tmp_path / "again", settings, config)
    other, _, _ = run(cutters, tmp_path / "other", replace(settings, seed=1), config)
    assert [same(whole, each) for each in (resumed, again, other)] == [True, True, False]


def test_bfloat16_training_lowers_the_loss(cutters, tmp_path):
    settings = replace(SETTINGS, precision="bfloat16", evaluate_every=20)
    encoder, progress, _ = run(cutters, tmp_path / "c", settings)
    assert progress.held_out[-1][1] < 0.95 * math.log(100)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_time_limit_ends_training_and_restores_kernel_and_sigint(cutters, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    encoder, progress, done = run(cutters, tmp_path / "c", replace(SETTINGS, steps=None, minutes=0.003))
    assert done
    assert progress.seconds >= 0.18
    assert progress.step >= 1
    assert signal.getsignal(signal.SIGINT) is before
    assert all(layer.self_attn.use_kernel for layer in encoder.layers)
    assert not encoder.training


def test_checkpoints_are_written_during_training_and_checked(cutters, tmp_path):
    path, seen = tmp_path / "c", set()
    settings = replace(SETTINGS, steps=4, save_minutes=0.0)
    run(cutters, path, settings, observe=lambda progress: seen.add(path.read_bytes()))
    assert len(seen) == 4
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"cannot read .* as a checkpoint"):
        run(cutters, path, resume=True)


def test_nan_loss_stops_training(cutters, tmp_path):
    said = r"the loss is nan at step \d+: choose a lower learning rate than 1e\+30"
    with pytest.raises(ModelError, match=said):
        run(cutters, tmp_path / "c", replace(SETTINGS, rate=1e30))
    assert not (tmp_path / "c").exists()


def test_loss_is_the_mean_over_masked_tokens(cutters):
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval()
    rows = cutters[0].training(0, 4)
    with torch.no_grad():
        logits = encoder.logits(encoder(torch.from_numpy(rows.ids), torch.from_numpy(rows.segments)))
        loss = train.rows_loss(encoder, rows, SETTINGS).item()
    shares = np.exp(logits.double().numpy())[rows.targets >= 0]
    asked = shares[range(len(shares)), rows.targets[rows.targets >= 0]] / shares.sum(-1)
    assert loss == pytest.approx(-np.log(asked).mean(), abs=1e-5)


def test_schedule_is_linear_warmup_and_cosine_decay():
    rates = {0.0: 0, 0.05: 0.5, 0.1: 1, 0.55: 0.5, 1.0: 0}
    assert {done: train.schedule(done, 0.1) for done in rates} == pytest.approx(rates)
    assert train.schedule(0.0, 0.0) == 1


SHAPE = replace(CONFIG, max_positions=64)
RECIPE = train.Recipe(SHAPE, length=32, repeats=0.1)
SHORT = train.Settings(steps=6, batch=8, rate=5e-3, evaluate_every=3, evaluate_rows=8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("books"), files=3, count=60)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "model"
    return folder, train.train_on_files(files, folder, RECIPE, SHORT)


def test_training_folder_has_model_and_summary_only(trained, files):
    folder, outcome = trained
    assert outcome.done
    names = {"config.json", "model.safetensors", "tokenizer.json", "training.json"}
    assert {path.name for path in folder.iterdir()} == names
    encoder, tokenizer = load_encoder(folder)
    assert encoder.config == replace(SHAPE, vocabulary=tokenizer.get_vocab_size(), trained=True)
    assert same(encoder, outcome.encoder)
    summary = json.loads((folder / "training.json").read_text())
    assert summary["progress"]["step"] == summary["settings"]["steps"] == 6
    used = [file["file"] for file in summary["files"]["training"]]
    assert sorted([*used, *outcome.held_out]) == sorted(path.name for path in files)


def test_held_out_loss_is_reproduced_from_the_folder(trained, files):
    folder, outcome = trained
    unseen = [path for path in files if path.name in outcome.held_out]
    loss, tokens = train.held_out_loss(folder, unseen, length=32)
    assert loss == pytest.approx(outcome.progress.held_out[-1][1], abs=1e-5)
    assert loss < math.log(outcome.encoder.config.vocabulary)
    assert tokens > 300
    assert train.held_out_loss(folder, unseen, length=32, seed=1)[0] != loss


def test_stopped_training_keeps_its_model_and_resumes_identically(trained, files, tmp_path):
    folder = tmp_path / "model"
    stopped = train.train_on_files(files, folder, RECIPE, SHORT, observe=press_ctrl_c(2))
    assert (stopped.progress.step, stopped.done) == (2, False)
    assert load_encoder(folder)[0].config.trained
    assert weights(folder) != weights(trained[0])
    outcome = train.train_on_files(files, folder, RECIPE, SHORT, resume=True)
    assert outcome.done
    assert weights(folder) == weights(trained[0])
    assert not (folder / "training").exists()


def test_resumed_training_may_only_get_longer(files, tmp_path):
    folder = tmp_path / "model"
    train.train_on_files(files, folder, RECIPE, SHORT, observe=press_ctrl_c(1))
    wider = replace(RECIPE, config=replace(SHAPE, width=64))
    for changed, terms in {
        "with width 32, not 64": (files, folder, wider, SHORT),
        r"with rate 0\.005, not 0\.1": (files, folder, RECIPE, replace(SHORT, rate=0.1)),
        "with repeats": (files, folder, replace(RECIPE, repeats=0.5), SHORT),
        "on other files": (files[:2], folder, RECIPE, SHORT),
    }.items():
        with pytest.raises(ModelError, match=f"was started {changed}"):
            train.train_on_files(*terms, resume=True)
    longer = train.train_on_files(files, folder, RECIPE, replace(SHORT, steps=8), resume=True)
    assert longer.progress.step == 8


def test_finished_or_missing_training_is_not_resumed(trained, files, tmp_path):
    for folder, reason in ((trained[0], "its run is over"), (tmp_path / "none", "it holds no run")):
        with pytest.raises(ModelError, match=f"nothing to resume in .*: {reason}"):
            train.train_on_files(files, folder, RECIPE, SHORT, resume=True)
    assert not (tmp_path / "none").exists()


def test_nonempty_training_folder_is_refused(trained, files, tmp_path):
    before = weights(trained[0])
    (tmp_path / "file").write_text("mine")
    for folder, said in (
        (trained[0], "exists already: choose another folder, or .* --resume"),
        (tmp_path / "file", "file exists already"),
        (tmp_path / "file" / "below", "cannot write"),
    ):
        with pytest.raises(OutputError, match=said):
            train.train_on_files(files, folder, RECIPE, SHORT)
    assert weights(trained[0]) == before
    (tmp_path / "empty" / "training").mkdir(parents=True)  # as a Ctrl-C right at the start leaves it
    assert train.train_on_files(files, tmp_path / "empty", RECIPE, replace(SHORT, steps=1)).done


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no text to train on: the files are empty"),
        ("\n \n", "the training text has 0 tokens, but sequences of 32 need 60 or more"),
        ("a few words\n" * 10, "the training text has .* tokens, but sequences of 32 need 60 or more"),
        ("a few words\n" * 100, "the held-out text has .* tokens, but sequences of 32 need 60 or more"),
    ],
)
def test_too_little_training_text_is_refused(tmp_path, text, message):
    (tmp_path / "book.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        train.train_on_files([tmp_path / "book.txt"], tmp_path / "model", RECIPE, SHORT)
    assert not (tmp_path / "model").exists()


def test_training_starts_from_another_encoder(trained, files, tmp_path):
    settings = replace(SHORT, rate=1e-9, steps=1)
    first = trained[1].encoder
    recipe = replace(RECIPE, config=first.config)
    outcome = train.train_on_files(files, tmp_path / "m", recipe, settings, start=trained[0])
    assert outcome.tokenizer.to_str() == trained[1].tokenizer.to_str()
    torch.testing.assert_close(outcome.encoder.state_dict(), first.state_dict(), rtol=0, atol=1e-6)
    shape = "has another shape than what is to be trained"
    for said, other, start in ((shape, RECIPE, "m"), ("holds no model", recipe, "none")):
        with pytest.raises(ModelError, match=said):
            train.train_on_files(files, tmp_path / "n", other, SHORT, start=tmp_path / start)
    assert not (tmp_path / "n").exists()


def test_missing_training_file_is_named(files, tmp_path):
    none = tmp_path / "none.txt"
    for given, held_out in (([*files, none], []), (files, [none])):
        with pytest.raises(InputError, match=r"cannot read .*none\.txt: No such file"):
            train.train_on_files(given, tmp_path / "model", RECIPE, SHORT, held_out=held_out)
    assert not (tmp_path / "model").exists()


def test_causal_training_with_byte_pairs(files, tmp_path):
    config = replace(SHAPE, vocabulary=320, causal=True)
    recipe = replace(RECIPE, config=config, tokenizer="bpe", guessed=1.0)
    outcome = train.train_on_files(files[:2], tmp_path / "m", recipe, SHORT, held_out=files[2:])
    assert outcome.held_out == (files[2].name,)
    encoder, tokenizer = load_encoder(tmp_path / "m")
    assert encoder.config.causal
    assert tokenizer.encode("猫").ids.count(1) == 0
    loss, _ = train.held_out_loss(tmp_path / "m", files[2:], length=32)
    assert loss == pytest.approx(outcome.progress.held_out[-1][1], abs=1e-5)


@pytest.mark.parametrize("length", [8, 65])
def test_training_length_beyond_the_model_is_refused(length):
    with pytest.raises(ModelError, match=f"from 16 to the model's 64 positions, not {length}"):
        replace(RECIPE, length=length)
