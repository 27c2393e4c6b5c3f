"""What looks at attention while the model runs: coarsen, keep, sample, row sums."""
