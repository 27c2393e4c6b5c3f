"""Passes that were kept, and what stands in a model's place."""
