"""All heads of a text, browsed in the terminal with the keyboard; needs Textual.

Browser(all_heads(model, prepared, Selection())).run()
"""

from attnscope.browser.app import Browser

__all__ = ["Browser"]
