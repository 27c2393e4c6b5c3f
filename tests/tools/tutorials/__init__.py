"""The two tutorials: trains their models, and writes the output of their commands into the pages."""
