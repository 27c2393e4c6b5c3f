"""The Python interface: a model reads a text once, and the result draws itself.

model = attnscope.load("own")              # or wrap(my_model, my_tokenizer)
run = model.read("The cat sat on the mat.")
run                                        # every head at a glance
run.head("L2H1").weights                   # NumPy, [query, key]
run.head("L2H1").plot(ax=ax)               # on axes of your own
run.stats().frame()                        # pandas
run.save("cat.trace")                      # and attnscope.open("cat.trace")
"""
