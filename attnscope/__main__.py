"""``python -m attnscope`` is the same as ``attnscope``."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """The command line; a Ctrl-C during Python's own imports also ends it quietly."""
    try:
        from attnscope.cli import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:  # the rest is up to Python: Ctrl-C ends it without a message
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()  # all that is left goes with the process: looking through it would take long


if __name__ == "__main__":
    main()
