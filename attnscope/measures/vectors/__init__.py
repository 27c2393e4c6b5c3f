"""What weights move: the vectors behind them, through one block or through all layers."""
