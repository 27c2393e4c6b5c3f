"""Sounds as models of transformers hear them."""
