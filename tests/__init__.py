"""Nothing that runs here, a test or a tool, reads or writes the passes that the user's commands keep."""

import os

os.environ["ATTNSCOPE_CACHE"] = "off"
