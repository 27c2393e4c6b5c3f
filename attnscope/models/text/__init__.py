"""Text into and out of a model: tokenizing, naming tokens, generating."""
