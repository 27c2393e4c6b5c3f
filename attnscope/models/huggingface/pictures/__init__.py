"""Pictures as models of transformers read them: alone, beside a text, or in it."""
