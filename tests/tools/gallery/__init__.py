"""Pictures of every kind, to be looked at."""
