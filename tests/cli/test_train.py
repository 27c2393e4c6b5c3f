"""The commands ``train`` and ``loss`` as a user meets them; what they compute is tested in tests/training."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnscope.cli.commands.loss import loss
from attnscope.cli.commands.train import train
from attnscope.errors import AttnscopeError, InputError, ModelError
from tests.training.corpus import write_corpus

TINY = ["--layers=1", "--heads=2", "--width=16", "--length=16", "--batch=4", "--vocabulary=80"]


def run(*arguments: object) -> tuple[int, str, str]:
    name, *typed = map(str, arguments)
    result = CliRunner().invoke({"train": train, "loss": loss}[name], typed)
    if isinstance(result.exception, AttnscopeError):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_corpus(tmp_path_factory.mktemp("books"), files=3, count=40)


def test_train_says_what_it_made_and_loss_agrees(books: list[Path], tmp_path: Path) -> None:
    code, out, err = run("train", *books, "-o", tmp_path / "m", *TINY, "--steps", 4, "--evaluate-every", 2)
    assert code == 0
    assert re.search(r"1 layers × 2 heads, width 16, [\d,]+ parameters", out)
    assert re.search(r"4 steps, [\d,]+ tokens", out)
    assert "learning the vocabulary" in err
    assert len(re.findall(r"step \d  .* tokens/s  loss \d", err)) == 2
    held_out = re.search(r"held out +(book\d\.txt)\n", out)
    said = re.search(r"([\d.]+) nats a predicted token", out)
    assert held_out is not None
    assert said is not None
    book = next(path for path in books if path.name == held_out[1])
    code, out, _ = run("loss", tmp_path / "m", book, "--length", 16)
    assert code == 0
    assert float(out.split()[0]) == pytest.approx(float(said[1]), abs=0.02)  # bfloat16 where it is fast
    assert "15 % of" in out


def test_a_run_and_its_loss_may_be_drawn_from_any_number_of_64_bits(books, tmp_path) -> None:
    seed = ("--seed", 2**64 - 1)
    code, _, _ = run("train", *books, "-o", tmp_path / "m", *TINY, "--steps", 2, *seed)
    assert code == 0
    assert run("loss", tmp_path / "m", books[0], "--length", 16, *seed)[0] == 0


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.nightly
def test_ctrl_c_keeps_the_model_and_resume_goes_on(books: list[Path], tmp_path: Path) -> None:
    program = "from attnscope.cli.commands.train import train; train()"
    folder = tmp_path / "m"
    arguments = [*map(str, books), "-o", str(folder), *TINY, "--evaluate-every", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments, "--minutes", "60"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    heard = []
    for line in process.stderr:
        heard.append(line)
        if line.startswith("step 3 "):
            process.send_signal(signal.SIGINT)
            break
    heard.append(process.stderr.read())
    assert process.wait() == 130, heard
    assert "--resume continues" in heard[-1]
    assert "Traceback" not in heard[-1]
    assert (folder / "model.safetensors").is_file()
    code, _, _ = run("train", *arguments, "--minutes", 0.01, "--resume")
    assert code == 0
    assert not (folder / "training").exists()


def test_mistakes_are_told_before_any_work(books: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "m"
    with pytest.raises(ModelError, match="3 heads do not divide a width of 16"):
        run("train", *books, "-o", folder, *TINY, "--heads", 3)
    with pytest.raises(InputError, match=r"none\.txt cannot be read: No such file"):
        run("train", tmp_path / "none.txt", "-o", folder, *TINY)
    with pytest.raises(ModelError, match=r"no device 'tpu' here: this machine has .*cpu"):
        run("train", *books, "-o", folder, *TINY, "--device", "tpu")
    with pytest.raises(ModelError, match="holds no model"):
        run("loss", tmp_path, *books)
    assert not folder.exists()


@pytest.mark.parametrize(
    "arguments",
    [("--steps", 1, "--minutes", 1), ("--steps", 0), ("--tokenizer", "unigram"), ("--short", 2), ("--what",)],
)
def test_wrong_usage_exits_with_2(books: list[Path], tmp_path: Path, arguments: tuple[object, ...]) -> None:
    code, _, err = run("train", *books, "-o", tmp_path / "m", *arguments)
    assert code == 2
    assert "Error" in err
    assert not (tmp_path / "m").exists()
