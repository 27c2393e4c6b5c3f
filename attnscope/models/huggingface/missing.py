"""Packages that transformers needs for some models: which is missing or broken, and how to install it."""

from __future__ import annotations

import re
from importlib.metadata import packages_distributions, version

from attnscope.errors import first_line

PIP = re.compile(r"pip install ([^`]+)`")
"""What transformers says to install, once its lines are joined."""

NAMED = (
    re.compile(r"requires (?:the )?(?:🤗 )?([\w.-]+?) library"),
    re.compile(r"need to install ([\w.-]+)"),
    re.compile(r"([\w.-]+) is (?:required|not installed)"),
)
"""How it names what it gives no line of pip for."""

BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Packages that are compiled for one release of torch."""

IMPORTERS = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
"""Modules that stand between the one that imports and the one that is imported."""


def explain_missing(error: BaseException) -> str | None:
    """What is not installed, or does not load, and what to do; ``None`` if an error says no such thing."""
    if not isinstance(error, ImportError):
        return None
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    packages = _find_named(" ".join(str(root).split()))
    if packages:
        verb = "is" if len(packages) == 1 else "are"
        return f"it needs {' and '.join(packages)}, which {verb} not installed: {_advise('', packages)}"
    if isinstance(root, ModuleNotFoundError) and root.name is not None:
        return f"it needs the Python module {root.name}: install the package that has it"
    broken = _find_broken(root)
    if broken is None:
        return None
    return f"the {broken} that is installed does not load ({first_line(root)}): {_advise('-U ', [broken])}"


def _find_named(message: str) -> list[str]:
    """The packages that a message of transformers says to install, each once."""
    words = [word for command in PIP.findall(message) for word in command.split()]
    packages = [word for word in words if not word.startswith("-") and "://" not in word]
    for pattern in () if packages else NAMED:
        packages += [name.lower() for name in pattern.findall(message)]
    return list(dict.fromkeys(packages))


def _find_broken(root: BaseException) -> str | None:
    """The package that transformers imported and that raised, as pip calls it."""
    broken, trace = None, root.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if module == "transformers":
            broken = None
        elif module not in IMPORTERS:
            broken = broken or module
        trace = trace.tb_next
    return packages_distributions().get(broken, [broken])[0] if broken else None


def _advise(options: str, packages: list[str]) -> str:
    """The line of pip, and which release is meant."""
    fitting = any(package in BUILT_FOR_TORCH for package in packages)
    release = f", the release that fits torch {version('torch')}" if fitting else ""
    return f"pip install {options}{' '.join(packages)}{release}"
