"""What all terminal pictures share: width, colour, strokes and columns of text."""
