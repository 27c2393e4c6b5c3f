"""Models of libraries other than transformers, each against a plain softmax of its own values."""
