"""Attention in windows, blocks and sorted chunks, put at its true keys; one file a layout."""
