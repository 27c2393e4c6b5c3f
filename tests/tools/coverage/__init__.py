"""How many architectures of transformers are captured exactly: ``python -m tests.tools.coverage``.

No test is collected here: building some 800 model types takes many minutes. The result is
``tests/tools/coverage.md``.
"""
