"""Ctrl-C at random moments: what exists afterwards is whole, and a second run completes.

python -m tests.tools.interruptions --times 200     # half of them in export, half in train; prints a table
"""
