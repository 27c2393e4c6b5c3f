"""How rows of weights are obtained: from scores, joined single heads, generation steps, softmax results."""
