"""Files, folders, texts and moments that were made to break it, from valid ones, each by its number.

    python -m tests.tools.attack                    # some 1,900 of all kinds
    python -m tests.tools.attack trace --first 7 --cases 1

A case is made from its kind and its number alone, and runs in a process of its own with a limit of time and
of memory. It has to end in an answer or in one sentence; ``judge`` says what else must hold.
"""
