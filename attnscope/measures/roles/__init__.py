"""Roles: what a head does in one word, which are weak, and where heads rest."""
