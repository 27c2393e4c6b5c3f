"""Charts: numbers along a text, shares of a whole, terms of a sum."""
