"""The two tutorials: models are trained, and what the commands print is written into the pages."""
