"""Settings of all tests: environment, processes, order and threads."""

import gc
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

# What a shell, a service that runs tests, or torchrun may set, and a user's own defaults: each changes what
# is printed, read or refused, here or in processes that tests start. A test that is about one sets it.
OUTSIDE = r"""_?ATTNSCOPE_.*(?<!_CACHE)
    FORCE_COLOR NO_COLOR COLORTERM TERM TERM_PROGRAM TTY_.* COLUMNS LINES JUPYTER_.* TEXTUAL.* UNICODE_VERSION
    PYTHONUTF8 PYTHONIOENCODING PYTHONLEGACY.* MPLBACKEND MATPLOTLIBRC SOURCE_DATE_EPOCH
    HF_HUB_OFFLINE TRANSFORMERS_OFFLINE RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"""

for name in [name for name in os.environ if re.fullmatch("|".join(OUTSIDE.split()), name)]:
    del os.environ[name]

# Tiny matrices gain nothing from several threads, and lose much where others want the cores, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the suite can be asked for beyond pytest's own options."""
    parser.addoption("--whole", action="store_true", help="also run nightly tests and every case of sweeps")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite, or a folder of it, takes every core; files that are named run in this process."""
    if hasattr(config, "workerinput"):  # one of the processes already, which must not start others
        return
    named = config.args_source is pytest.Config.ArgsSource.ARGS and all(".py" in name for name in config.args)
    chosen = getattr(config.option, "numprocesses", 0) is not None  # by -n, or there is no xdist
    if not (chosen or named or config.option.usepdb or config.option.collectonly):
        config.option.numprocesses, config.option.dist = "auto", "worksteal"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A process a core that this one may use; none beside this one where there is a single core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if cores > 1 else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests begin first, so that none is left running at the end.

    Of sweeps one case in five runs, or in as many as the marker says, and of nightly tests none, unless all
    are asked for.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.getoption("whole"):
        return
    for item in items:
        if item.get_closest_marker("nightly") is not None:
            item.add_marker(pytest.mark.skip(reason="nightly: runs with --whole"))
    left: dict[str, int] = {}
    for item in [item for item in items if item.get_closest_marker("sweep") is not None]:
        name, (step,) = item.nodeid.partition("[")[0], item.get_closest_marker("sweep").args or (5,)
        left[name] = left.get(name, -1) + 1
        if left[name] % step:
            items.remove(item)
            config.hook.pytest_deselected(items=[item])


def pytest_collection_finish() -> None:
    """What tests import lives as long as they do: no collection of garbage looks through it again."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def hold(stack: ExitStack) -> None:
    """Keep the calls of modules routed through listeners, of which there are none."""
    if "torch" in sys.modules:
        from torch import nn

        from attnscope.capture.hooks.modules import CALLED

        stack.enter_context(CALLED.installed(nn.Module))


@pytest.fixture(scope="session", autouse=True)
def held():
    """Between passes, calls stay routed, as while another thread records one.

    Python tells each class that inherits the calls of modules: thousands here, for 16 ms twice a pass.
    """
    with ExitStack() as stack:
        hold(stack)
        yield stack


@pytest.fixture
def released(held):
    """Between passes, calls are those of torch, as where no other test runs."""
    held.close()
    yield
    hold(held)


@pytest.fixture(autouse=True)
def unasked(request, monkeypatch):
    """Only tests marked ``sealed`` ask whether tokens also mix outside attention; with ``--whole`` all do."""
    if not (request.node.get_closest_marker("sealed") or request.config.getoption("whole")):
        from attnscope.models import seal

        monkeypatch.setattr(seal, "seal_of_input", lambda *_: seal.Seal())


@pytest.fixture
def run(monkeypatch, capsys):
    """``attnscope`` in this very process, in 80 columns and without a user's settings."""
    from tests.cli.run import runner

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("attnscope.cli.settings.users_file", lambda: Path("no", "config.toml"))
    return runner(monkeypatch, capsys)
