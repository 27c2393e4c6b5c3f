"""Lineage: where the entries of a tensor come from: which text, position, and projection output."""
