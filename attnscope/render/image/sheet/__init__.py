"""What all images share: the sheet, its titles, axes and fonts."""
