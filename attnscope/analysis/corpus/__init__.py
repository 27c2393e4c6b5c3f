"""Figures over many texts: in batches of equal length, on several threads and processes."""
