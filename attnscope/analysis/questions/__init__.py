"""Questions about a text: which head looks from here to there."""
