"""Tests and tools: nothing here reads or writes the user's own cached passes."""

import os

os.environ["ATTNSCOPE_CACHE"] = "off"
