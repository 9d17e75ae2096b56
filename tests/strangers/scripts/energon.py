import sys
from pathlib import Path

import torch
from things import taken

from penstock.compat import energon as en


class Texts(en.DefaultTaskEncoder):
    cookers = ()

    def __init__(self):
        self.cookers = (en.Cooker(text),)
        super().__init__()


@en.stateless
def text(sample):
    torch.ones(500, 500) @ torch.ones(500, 500)
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["txt"])


data = Path(__file__).parents[2] / "golden" / "energon-loading" / "data" / "ds_a"
config = en.WorkerConfig(rank=0, world_size=1, num_workers=2)
dataset = en.get_train_dataset(
    data,
    worker_config=config,
    batch_size=4,
    task_encoder=Texts(),
    shuffle_buffer_size=None,
    max_samples_per_sequence=None,
)
batches = iter(en.get_savable_loader(dataset))
taken(batches)
with en.get_loader(dataset) as closed:
    taken(iter(closed))
closed.close()
try:
    next(iter(closed))
except ValueError as error:
    print(str(error).partition(".")[0])
print("done")
sys.exit(7)
