from things import busy_in_torch, source, taken

import penstock as ps
from penstock.load.torch import torch_loader

stream = ps.Sequential(ps.Map(source(), busy_in_torch))
loaders = [torch_loader(stream, 4, rank=0, world=1) for _ in range(2)]
running = [iter(one) for one in loaders]
for batches in running:
    taken(batches)
print("done")
