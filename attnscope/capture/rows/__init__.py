"""How rows of weights are had: from scores, joined single heads, generation steps, softmax results."""
