"""Hostile input by the thousand: whatever comes in, a result or one clear sentence comes out.

    python -m tests.tools.fuzz --inputs 2000        # every kind; prints the table in tests/hardening.md
    python -m tests.tools.fuzz --inputs 50 text     # one kind

The ordinary test run tries a few of each kind (``test_fuzz.py``).
"""
