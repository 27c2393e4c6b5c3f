"""The interactive HTML page of all heads, and that of a graph."""
