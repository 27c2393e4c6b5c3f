"""Every command: how it starts, what it prints while it works, and how it ends."""

import io
import signal
import subprocess
import sys
import time
from contextlib import suppress
from unittest.mock import Mock

import pytest

from attnscope import cli
from attnscope.cli.commands import find_command
from attnscope.cli.messages import spinner
from attnscope.measures import MEASURES
from attnscope.models import load
from attnscope.models.trace_model import attach_trace
from attnscope.models.trace_recording import record_pass
from attnscope.progress import listening, report
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, overview
from tests.models.folders import gpt2

TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture
def start(monkeypatch):
    """A function that runs another one in the place of the command line."""

    def start(app):
        monkeypatch.setattr(cli, "run", app)
        cli.main()

    return start


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device", "/out/heads.png"), "No space left on device: /out/heads.png"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "out of memory: Python asked for more memory than there is"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out of memory: torch"),
        (KeyError("x"), "unexpected KeyError: 'x' (ATTNSCOPE_TRACEBACK=1 shows where"),
    ],
)
def test_unexpected_error_is_one_sentence(monkeypatch, start, capsys, error, sentence):
    monkeypatch.delenv("ATTNSCOPE_TRACEBACK", raising=False)
    with pytest.raises(SystemExit, match="2"):
        start(Mock(side_effect=error))
    told = capsys.readouterr().err
    assert told.startswith(f"attnscope: {sentence}")
    assert told.count("\n") == 1


def test_long_error_is_shortened_in_the_middle(start, capsys):
    with pytest.raises(SystemExit, match="2"):
        start(Mock(side_effect=OSError(36, "File name too long", "x" * 5000)))
    told = capsys.readouterr().err
    assert len(told) < 550
    assert " ... " in told


def test_traceback_is_shown_on_request(monkeypatch, start):
    monkeypatch.setenv("ATTNSCOPE_TRACEBACK", "1")
    with pytest.raises(KeyError):
        start(Mock(side_effect=KeyError("x")))


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal, also where the tests run in the background and it is ignored."""
    before, hook = signal.signal(signal.SIGINT, signal.default_int_handler), sys.unraisablehook
    yield
    sys.unraisablehook = hook
    signal.signal(signal.SIGINT, before)


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("imported", "program", "code"),
    [
        ("typer", "from attnscope.__main__ import main; main()", 130),
        (
            "torch",
            "from attnscope import cli; cli.run = lambda: __import__('torch'); cli.main()",
            -signal.SIGINT,
        ),
    ],
)
def test_ctrl_c_during_import_ends_silently(tmp_path, imported, program, code):
    (tmp_path / f"{imported}.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\nprint('went on')"
    )
    begin = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # it may be ignored here
    )
    command = [sys.executable, "-c", f"{begin}\nimport sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"]
    ended = subprocess.run(command, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_replaced_by_a_library_error_still_interrupts(start):
    def app():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("incompatible function arguments") from None

    with pytest.raises(KeyboardInterrupt):
        start(app)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_swallowed_by_python_is_raised_again(start, capsys):
    class Collected:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def app():
        Collected()
        time.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        start(app)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("pressed", [True, False])
def test_objects_interrupted_by_ctrl_c_print_no_errors(monkeypatch, start, pressed):
    class CutOff:
        def __del__(self):
            raise ValueError("it is open")

    def app():
        open_file = CutOff()
        if pressed:
            signal.raise_signal(signal.SIGINT)
        del open_file

    heard = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: heard.append(str(ignored.exc_value)))
    with suppress(KeyboardInterrupt):
        start(app)
    assert heard == ([] if pressed else ["it is open"])


@pytest.mark.usefixtures("ctrl_c")
def test_second_ctrl_c_does_not_disturb_cleanup(start):
    cleaned = []

    def app():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        start(app)
    assert cleaned == [True]


@pytest.mark.parametrize("columns", ["0", "-5", "many"])
def test_invalid_columns_use_the_default_width(monkeypatch, run, columns):
    monkeypatch.delenv("COLUMNS")
    wanted = run("show", "The cat sat.").out
    monkeypatch.setenv("COLUMNS", columns)
    assert run("show", "The cat sat.").out == wanted
    assert len(wanted) > 500


@pytest.mark.nightly
@pytest.mark.subprocess
@pytest.mark.slow
def test_optimized_python_prints_the_same(tmp_path):
    def ended(*words):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    for words in (("show", "The cat sat.", "--head", "L1H1"), ("train", "--help")):
        plain = ended("-m", "attnscope", *words)
        assert plain[0] == 0
        assert ended("-OO", "-m", "attnscope", *words) == plain
    folder = gpt2(tmp_path / "gpt2")  # the library cannot do without docstrings
    code, _, told = ended("-OO", "-m", "attnscope", "stats", "The cat sat.", "-m", folder)
    assert (code, told.count("\n")) == (2, 1)
    assert told.endswith("run python without -OO\n")


def test_missing_docstring_is_read_from_the_source(run, monkeypatch):
    help_of_train = run("train", "--help").out
    monkeypatch.setattr(find_command("train"), "__doc__", None)
    assert run("train", "--help").out == help_of_train
    for measure in MEASURES.values():
        summary = measure.summary
        monkeypatch.setattr(measure.form.function, "__doc__", None)
        assert measure.summary == summary != ""


def test_unencodable_characters_are_replaced(monkeypatch, start):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    start(lambda: print("caf\u00e9 \u2592 \U0001f408"))
    stream.flush()
    assert stream.buffer.getvalue().split() == [b"caf?", b"?", b"?"]


@pytest.mark.sweep(4)
@pytest.mark.subprocess
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2> >(true)"])
@pytest.mark.parametrize(("head", "code"), [("L0H0", 0), ("L9H9", 2)])
def test_answer_is_unaffected_by_broken_standard_error(run, tmp_path, redirection, head, code):
    trace = tmp_path / "a.trace"  # answers without torch
    assert run("show", "a cat sat", "--save-trace", trace).code == 0
    command = f"{sys.executable} -m attnscope show --from {trace} --head {head} {redirection}"
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True)
    assert done.returncode == code
    assert done.stdout.startswith("L0H0") == (code == 0)


@pytest.mark.sweep(3)
@pytest.mark.subprocess
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("asked", ["skill", "check any.previous>0 --from a.trace"])
def test_closed_pipe_ends_the_command_silently(run, tmp_path, monkeypatch, asked, unbuffered):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert run("show", TEXT, "--save-trace", "a.trace").code == 0
    command = [sys.executable, "-m", "attnscope", *asked.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_progress_reports_layers_tokens_and_passes():
    heard, writer, predicting = [], load("own-causal"), load("own", predicting=True)
    with listening(lambda *what: heard.append(what)):
        measure_heads(predicting, predicting.prepare(TEXT), Selection())
        assert heard == [("layer", done, 4) for done in (1, 2, 3, 4)]
        writer.generate(writer.prepare("The king said that he would"), 5)
        measure_heads(predicting, predicting.prepare(" ".join([TEXT] * 8)), Selection(), importance=True)
    assert [told for told in heard if told[0] == "token"] == [("token", done, 5) for done in (1, 2, 3, 4, 5)]
    done, of = zip(*(told[1:] for told in heard if told[0] == "pass"), strict=True)
    assert list(done) == list(range(1, of[-1] + 1))


def test_progress_of_a_first_look_fills_once():
    heard, model = [], load("own")
    prepared = model.prepare(TEXT)
    with listening(lambda *what: heard.append(what)):
        recorded = attach_trace(prepared, record_pass(model, prepared))
        one_head(model, recorded, "L2H1")
        overview(model, recorded, Selection())
    assert heard == [("layer", done, 4) for done in (1, 2, 3, 4)]


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_terminal_progress_is_one_line(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with spinner("a [model] of many words"):
        report("layer", 3, 12)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1  # the end of the line that is taken back
    assert columns < 80 or ("a [model] of many words" in shown and "layer 3 of 12" in shown)


def test_quiet_omits_notes_and_verbose_adds_step_times(run, tmp_path):
    out = tmp_path / "a.npz"
    for words in (("--head", "L2H1"), ("-o", out)):
        usual, quiet, verbose = (
            run("show", TEXT, "--max-tokens", "9", *words, *more) for more in ((), ("-q",), ("-v",))
        )
        assert quiet.err == ""
        assert len(quiet.out) < len(usual.out) or not usual.out
        assert "own · 9 tokens: " in verbose.err
        assert verbose.out == usual.out
    assert (usual.err, out.exists()) == (f"saved {out}\n", True)
