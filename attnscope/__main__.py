"""``python -m attnscope`` is the same as ``attnscope``."""

from __future__ import annotations


def main() -> None:
    """The command line; a Ctrl-C while Python still imports it ends quietly too."""
    try:
        from attnscope.cli import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
