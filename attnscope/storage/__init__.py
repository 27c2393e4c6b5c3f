"""Everything that touches files: whole-or-nothing writes, arrays, export folders, corpora."""
