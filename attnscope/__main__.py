"""``python -m attnscope`` is the same as ``attnscope``."""

from attnscope.cli import main

main()
