"""Run the command line inside the test process, as a user would call it."""

from dataclasses import dataclass

import pytest

from attnscope.cli import main


@dataclass(frozen=True)
class Ran:
    """Exit code and both outputs of a command."""

    code: int
    out: str
    err: str


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A function that runs ``attnscope`` with arguments."""
    # a process with --offline has no network for good: here, until the test ends
    monkeypatch.setattr("attnscope.offline._everywhere", [])

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr("sys.argv", ["attnscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ran(ended.value.code or 0, out, err)

    return run
