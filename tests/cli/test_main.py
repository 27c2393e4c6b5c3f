"""What holds of every command: how it starts, and how it ends when something goes wrong."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from attnscope import cli
from attnscope.measures import MEASURES


def failing(monkeypatch, capsys, error):
    def app():
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device", "/out/heads.png"), "No space left on device: /out/heads.png"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "out of memory (MemoryError): cut the text with --max-tokens"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out of memory ("),
        (KeyError("x"), "unexpected KeyError: 'x' (ATTNSCOPE_TRACEBACK=1 shows where"),
    ],
)
def test_what_nobody_foresaw_is_one_sentence_too(monkeypatch, capsys, error, sentence):
    monkeypatch.delenv("ATTNSCOPE_TRACEBACK", raising=False)
    code, told = failing(monkeypatch, capsys, error)
    assert code == 1
    assert told.startswith(f"attnscope: {sentence}")
    assert told.count("\n") == 1


def test_a_long_sentence_loses_its_middle(monkeypatch, capsys):
    code, told = failing(monkeypatch, capsys, OSError(36, "File name too long", "x" * 5000))
    assert code == 1
    assert len(told) < 550
    assert " ... " in told


def test_a_traceback_is_shown_to_those_who_ask(monkeypatch, capsys):
    monkeypatch.setenv("ATTNSCOPE_TRACEBACK", "1")

    def app():
        raise KeyError("x")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(KeyError):
        cli.main()


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal, also where the tests run in the background and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.subprocess
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_with_130_and_no_word_even_while_python_imports(tmp_path):
    # typer stands for what is imported first: here it is a file that is interrupted
    (tmp_path / "typer.py").write_text(f"import os\nos.kill(os.getpid(), {int(signal.SIGINT)})\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from attnscope.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_that_a_library_turned_into_its_own_error_is_still_one(monkeypatch):
    def app():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise TypeError("incompatible function arguments") from None

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(KeyboardInterrupt):
        cli.main()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_that_python_swallows_comes_again(monkeypatch, capsys):
    class Collected:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    def app():
        Collected()
        time.sleep(20)

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(KeyboardInterrupt):
        cli.main()
    assert capsys.readouterr().err == ""


@pytest.mark.subprocess
def test_python_without_docstrings_prints_the_same_help():
    plain, stripped = (
        subprocess.run([sys.executable, *flags, "-m", "attnscope", "train", "--help"], capture_output=True)
        for flags in ([], ["-OO"])
    )
    assert b"attnscope train books/*.txt -o my-encoder" in stripped.stdout
    assert (stripped.returncode, stripped.stdout) == (0, plain.stdout)


def test_a_docstring_that_python_left_out_is_read_from_the_source(monkeypatch):
    for measure in MEASURES.values():
        summary = measure.summary
        monkeypatch.setattr(measure.form.function, "__doc__", None)
        assert measure.summary == summary != ""


def test_what_an_encoding_cannot_write_is_replaced(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr(cli, "app", lambda: print("caf\u00e9 \u2592 \U0001f408"))
    cli.main()
    stream.flush()
    assert stream.buffer.getvalue().split() == [b"caf?", b"?", b"?"]
