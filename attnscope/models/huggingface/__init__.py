"""Models of the transformers library: found, loaded, and given what they read."""
