import sys

import late
from things import loader, taken


def waits(sample):
    if sample["id"] >= 8:
        late.future.wait()  # ends when the interpreter is half gone
    return sample


batches = iter(loader(waits, workers=1))
taken(batches)
print("done")
sys.exit(4)
