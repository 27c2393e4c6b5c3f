"""Observers of attention during a pass: coarsen, keep, sample, row sums."""
