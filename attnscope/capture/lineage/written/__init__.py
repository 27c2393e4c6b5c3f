"""Weights that no softmax made: found, followed until they are whole, or named."""
