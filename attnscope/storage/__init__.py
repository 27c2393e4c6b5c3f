"""All file access: atomic writes, arrays, export folders, corpora."""
