"""The residual stream of a pass: what is added to it, followed back from a score through torch's graph."""
