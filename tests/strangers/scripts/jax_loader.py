import sys
import types

import things

import penstock as ps

try:
    import jax
except ImportError:  # what the loader needs of it
    jax = types.ModuleType("jax")
    jax.numpy = types.SimpleNamespace(asarray=lambda array: array)
    jax.process_index, jax.process_count = (lambda: 0), (lambda: 1)
    sys.modules["jax"] = jax

from penstock.load.jax import JaxLoader

stream = ps.Sequential(ps.Map(things.source(), things.short))
with JaxLoader(stream, 4) as closed:
    things.taken(iter(closed))
try:
    next(iter(closed))
except ValueError as error:
    print(str(error).partition(".")[0])
batches = iter(JaxLoader(stream, 4))
things.taken(batches)
print("done")
