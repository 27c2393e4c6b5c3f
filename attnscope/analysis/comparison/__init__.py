"""Heads, texts and models compared."""
