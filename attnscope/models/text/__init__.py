"""Text on its way into a model and out of it: read by a tokenizer, named token by token, gone on with."""
