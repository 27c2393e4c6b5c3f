"""The version, on the ground floor: every package may say which one wrote a file."""

__version__ = "0.1.0"
