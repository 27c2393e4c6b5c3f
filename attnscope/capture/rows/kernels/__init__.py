"""What each kernel received, as one attention call: torch's functions, and those of transformers."""
