"""The figures of heads: measured, kept, claimed, and as plain data."""
