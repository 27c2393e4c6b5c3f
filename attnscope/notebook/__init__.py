"""The Python interface: a model reads a text once, and the result draws itself."""
