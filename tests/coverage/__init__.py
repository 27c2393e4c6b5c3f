"""How many architectures of transformers are captured exactly: ``python -m tests.coverage``.

No test is collected here: building some 800 model types takes many minutes. The result is
``tests/coverage.md``.
"""
