"""Whether all mixing between tokens goes through the attention that is shown."""
