"""One forward pass, and the views that are built from what was seen in it.

model = load("own")
prepared = model.prepare("The cat sat on the mat.")
everything = overview(model, prepared, Selection())
head = one_head(model, prepared, "L0H2")
token = one_token(model, prepared, Selection(token="cat"))

Every verb stands in the module of its name and is imported from there (or from ``attnscope``, which
knows them all), so that a look at one head does not load what compares corpora.
"""
