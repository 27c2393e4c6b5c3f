"""Machine code for what torch does in many sweeps: compiled on first use, where a compiler stands, and kept.

The library is kept in a private folder under a name made from its source, the compiler, the processor and
torch. Without it torch's operations do the same.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from attnscope.lazy import torch
from attnscope.private import is_private, private_folder

SOURCE = Path(__file__).with_suffix(".cpp")

FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")

SECONDS = 60  # the longest that compiling may take


@lru_cache(1)
def load_compiled() -> bool:
    """Register the functions of ``compiled.cpp`` under ``torch.ops.attnscope``; whether that worked."""
    compiler = shutil.which(os.environ.get("CXX") or "c++")
    folder = None if compiler is None or os.name == "nt" else private_folder("compiled", make=True)
    if compiler is None or folder is None:
        return False
    try:
        library = folder / f"{_name(compiler)}.so"
        if not library.exists():
            _compile(compiler, library)
        if library.is_symlink() or not is_private(library.stat()):
            return False
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _name(compiler: str) -> str:
    """What the library depends on: a home folder may be shared by machines with different processors."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    processor = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    parts = (SOURCE.read_text(), *FLAGS, compiler, torch.__version__, platform.machine(), processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _compile(compiler: str, library: Path) -> None:
    """Compile to a file of its own, which takes its place when it is whole."""
    root = Path(torch.__file__).parent
    linked = ("-I", root / "include", SOURCE, "-L", root / "lib", "-ltorch_cpu")
    descriptor, unfinished = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(descriptor)
    try:
        command = [compiler, *FLAGS, *map(str, linked), "-o", unfinished]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        os.chmod(unfinished, 0o700)
        os.replace(unfinished, library)
    finally:
        Path(unfinished).unlink(missing_ok=True)
