"""Outputs and row statistics of all heads in one pass over tiles."""
