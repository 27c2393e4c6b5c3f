"""How the encoder is made: data, optimizer, checkpoints."""
