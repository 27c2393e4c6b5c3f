"""Views as images: PNG, SVG and PDF, drawn by matplotlib without a screen.

    warnings = save_image(view, "L05H03.png")  # the suffix says the format
    with drawing(view) as (figure, warnings):
        ...  # a matplotlib Figure, to look into or to change

The same view gives the same bytes: no dates, fixed ids, matplotlib's own defaults whatever the user's
style. Token text is literal (no formulas), and characters that no font has are reported.
"""

from attnscope.render.image.draw import DPI, FORMATS, Album, drawing, encode, save_image

__all__ = ["DPI", "FORMATS", "Album", "drawing", "encode", "save_image"]
