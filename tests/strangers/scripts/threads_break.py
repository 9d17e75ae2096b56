import torch  # noqa: F401
from things import busy_in_torch, loader

for number, _batch in enumerate(loader(busy_in_torch)):
    if number == 2:
        break
print("done")
