"""What holds of every test."""

import os

# Tiny matrices gain nothing from several threads, and lose much where others want the cores, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
