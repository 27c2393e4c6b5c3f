"""Where the numbers in a tensor come from: which text, which position, which output of which projection."""
