"""Attention that a module writes out itself: a softmax, sums over keys, additive scores."""
