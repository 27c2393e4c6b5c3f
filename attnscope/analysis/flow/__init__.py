"""What flows through all layers and heads, from a token back to those of the text."""
