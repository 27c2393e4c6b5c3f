"""Which tokens a prediction really needs, and which way of weighing attention finds them first."""
