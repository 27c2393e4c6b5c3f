"""Where in a picture or a sound attention lies."""
