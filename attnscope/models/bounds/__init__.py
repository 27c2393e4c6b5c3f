"""What a foreign file may ask for: memory, time, and work that is tried in a copy first."""
