"""The residual stream of a pass: its summands, followed back from a score through torch's autograd graph."""
