import torch  # noqa: F401
from things import busy_in_torch, loader, taken

batches = iter(loader(busy_in_torch, workers=3))
taken(batches)
print("done")
