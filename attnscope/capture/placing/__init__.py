"""The kind and layer of each call, and the layers without attention."""
