"""Where the weights are that a request names: at one key of every row, by gap, on pairs."""
