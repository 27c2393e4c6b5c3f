"""What a measure may be a function of: where a key stands, its token, or whole rows."""
