import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope.errors import ModelError
from attnscope.network.encoder import Encoder, EncoderConfig
from attnscope.training.data import Cutter, Lines, read_stream, train_tokenizer, write_stream
from attnscope.training.train import Settings, evaluate, rows_loss, schedule, train_encoder
from tests.training.corpus import press_ctrl_c, sentences, write_corpus

CONFIG = EncoderConfig(vocabulary=100, width=32, layers=2, heads=4, hidden=64, max_positions=32)
SETTINGS = Settings(steps=12, batch=8, rate=5e-3, evaluate_every=4, evaluate_rows=8)


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


def run(
    cutters,
    path,
    settings=SETTINGS,
    config=CONFIG,
    resume=False,
    observe=lambda progress: None,
):
    torch.manual_seed(settings.seed)
    encoder = Encoder(config)
    training, held_out = (replace(cutter, causal=config.causal) for cutter in cutters)
    progress, done = train_encoder(encoder, training, held_out, settings, path, resume, observe)
    return encoder, progress, done


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("causal", [False, True])
def test_a_short_run_lowers_the_loss(cutters, tmp_path, causal):
    config = replace(CONFIG, causal=causal)
    settings = replace(SETTINGS, steps=100, evaluate_every=100)
    encoder, progress, done = run(cutters, tmp_path / "c", settings, config)
    assert done
    assert progress.step == 100
    torch.manual_seed(0)
    before = evaluate(Encoder(config), replace(cutters[1], causal=causal), settings)
    assert before == pytest.approx(math.log(100), abs=0.1)
    after = evaluate(encoder, replace(cutters[1], causal=causal), settings)
    assert progress.held_out[-1] == (100, pytest.approx(after, abs=1e-5))
    assert progress.held_out[-1][1] < 0.75 * before


@pytest.mark.parametrize(("optimizer", "dropout"), [("adamw", 0.1), ("muon", 0.0)])
def test_a_run_that_was_stopped_resumes_to_the_same_weights_bit_for_bit(
    cutters, tmp_path, optimizer, dropout
):
    settings = replace(SETTINGS, optimizer=optimizer, causal_first=0.3)
    config = replace(CONFIG, dropout=dropout)
    whole, progress, _ = run(cutters, tmp_path / "whole", settings, config)
    _, stopped, done = run(cutters, tmp_path / "parts", settings, config, observe=press_ctrl_c(5))
    assert (stopped.step, done) == (5, False)
    resumed, last, done = run(cutters, tmp_path / "parts", settings, config, resume=True)
    assert done
    assert same(whole, resumed)
    assert (last.held_out, last.loss, last.tokens) == (progress.held_out, progress.loss, progress.tokens)
    again, _, _ = run(cutters, tmp_path / "again", settings, config)
    assert same(whole, again)
    other, _, _ = run(cutters, tmp_path / "other", replace(settings, seed=1), config)
    assert not same(whole, other)


def test_bfloat16_learns_too(cutters, tmp_path):
    encoder, progress, _ = run(
        cutters, tmp_path / "c", replace(SETTINGS, precision="bfloat16", evaluate_every=20)
    )
    assert progress.held_out[-1][1] < 0.95 * math.log(100)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_minutes_end_by_the_clock(cutters, tmp_path):
    settings = replace(SETTINGS, steps=None, minutes=0.01)
    _, progress, done = run(cutters, tmp_path / "c", settings)
    assert done
    assert progress.seconds >= 0.6
    assert progress.step >= 1


def test_a_checkpoint_of_another_shape_is_refused(cutters, tmp_path):
    path = tmp_path / "c"
    run(cutters, path, replace(SETTINGS, steps=2))
    with pytest.raises(ModelError, match="was made with width 32, not 64"):
        run(cutters, path, config=replace(CONFIG, width=64), resume=True)
    with pytest.raises(ModelError, match="there is nothing to resume"):
        run(cutters, tmp_path / "none", resume=True)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be read as a checkpoint"):
        run(cutters, path, resume=True)


def test_a_crash_while_saving_leaves_the_last_checkpoint(cutters, tmp_path, monkeypatch):
    path = tmp_path / "c"
    run(cutters, path, observe=press_ctrl_c(5))
    before = path.read_bytes()

    def crash(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        run(cutters, path, resume=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_checkpoints_are_written_along_the_way(cutters, tmp_path):
    path = tmp_path / "c"
    seen: set[bytes] = set()

    def look(progress):
        seen.add(path.read_bytes())

    run(cutters, path, replace(SETTINGS, steps=4, save_minutes=0.0), observe=look)
    assert len(seen) == 4


def test_a_loss_that_is_no_number_stops_the_run(cutters, tmp_path):
    with pytest.raises(
        ModelError, match=r"the loss is nan at step \d+: choose a lower learning rate than 1e\+30"
    ):
        run(cutters, tmp_path / "c", replace(SETTINGS, rate=1e30))
    assert not (tmp_path / "c").exists()


def test_the_loss_is_the_mean_over_the_hidden_tokens_alone(cutters):
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval()
    rows = cutters[0].training(0, 4)
    with torch.no_grad():
        logits = encoder.logits(encoder(torch.from_numpy(rows.ids), torch.from_numpy(rows.segments))).double()
        loss = rows_loss(encoder, rows, SETTINGS).item()
    shares = (logits.exp() / logits.exp().sum(-1, keepdim=True)).numpy()
    asked = [
        -np.log(shares[row, column, rows.targets[row, column]])
        for row, column in zip(*np.nonzero(rows.targets >= 0), strict=True)
    ]
    assert loss == pytest.approx(np.mean(asked), abs=1e-5)


def test_the_schedule_goes_up_a_line_and_down_a_cosine():
    assert schedule(0.0, 0.1) == 0
    assert schedule(0.05, 0.1) == pytest.approx(0.5)
    assert schedule(0.1, 0.1) == pytest.approx(1)
    assert schedule(0.55, 0.1) == pytest.approx(0.5)
    assert schedule(1.0, 0.1) == pytest.approx(0)
    assert schedule(0.0, 0.0) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "give one of the two"),
        ({"minutes": 1.0}, "give one of the two"),
        ({"optimizer": "sgd"}, "no optimizer 'sgd': there are adamw, muon"),
        ({"precision": "float16"}, "no precision 'float16': there are float32, bfloat16"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        replace(SETTINGS, **changes)


def test_training_leaves_the_kernel_and_ctrl_c_as_they_were(cutters, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    encoder, _, _ = run(cutters, tmp_path / "c", replace(SETTINGS, steps=1))
    assert signal.getsignal(signal.SIGINT) is before
    assert all(layer.self_attn.use_kernel for layer in encoder.layers)
    assert not encoder.training
