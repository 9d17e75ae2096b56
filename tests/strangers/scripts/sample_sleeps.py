import sys

from things import loader, sleeps, taken

batches = iter(loader(sleeps, workers=1))
taken(batches)
print("done")
sys.exit(5)
