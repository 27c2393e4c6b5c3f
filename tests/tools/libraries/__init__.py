"""Models of other libraries than transformers, each held against a plain softmax of its own numbers."""
