"""Draws views: in the terminal, as images, as a page, as data. No arithmetic here beyond colour."""
