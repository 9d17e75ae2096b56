import torch  # noqa: F401
from things import busy_in_torch, loader

for _batch in loader(busy_in_torch):
    raise ValueError("the script's own")
