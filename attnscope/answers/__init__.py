"""Answers: what a question found, as views, as the numbers behind them, as tables. No picture is drawn."""
