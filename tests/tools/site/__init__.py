"""The documentation as a site, from what the project says anyway: ``python -m tests.tools.site FOLDER``."""
