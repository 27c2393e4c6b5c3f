"""``python -m attnscope`` is the same as ``attnscope``."""

from __future__ import annotations

import signal


def main() -> None:
    """The command line; a Ctrl-C while Python still imports it ends quietly too."""
    try:
        from attnscope.cli import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:  # what is left to do is Python's: a Ctrl-C ends it without a word
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
