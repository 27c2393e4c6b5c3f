"""Where attention calls are seen: transformers' interface, torch's functions, what modules return."""
