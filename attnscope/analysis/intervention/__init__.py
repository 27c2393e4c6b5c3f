"""What a model's predictions lose when a head is gated or taken away."""
