"""attnscope's own network: a transformer encoder on ``MultiHeadAttention``, its tokenizer and its folder."""
