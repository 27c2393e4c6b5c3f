"""Questions with known answers over a corpus: which heads look from a word to the one that it belongs to."""
