"""Where attention calls are seen: transformers' interface, and torch's functions in modules."""
